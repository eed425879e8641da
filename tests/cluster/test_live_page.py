"""A run that trains, seen from outside: its live page tells of a fault, `elastic status` finds it by its name."""

import http.client
import json
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import elastic
from elastic.control.state import RunState, Standing
from tests.cluster.test_fit import fit
from tests.cluster.training import At, start_python
from tests.effects.browser import Tab, browser, needs_browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEPS = 1500
WITHIN_S = 10.0  # 2 s are promised on a machine that does nothing else
QUICKLY_S = 2.0  # so at the better of two faults
CLI = "from elastic.cli import main\nmain()\n"


class Visitor:
    """Asks the page for each newer report, from a thread beside; keeps when it had heard of the first failure."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "page.url"
        self.reports: list[dict[str, Any]] = []
        self.heard_s: float | None = None
        self._thread = threading.Thread(target=self._look, daemon=True)

    def begin(self) -> None:
        """Comes back with the first report, or after some time."""
        self._thread.start()
        deadline_s = time.monotonic() + 30
        while not self.reports and time.monotonic() < deadline_s:
            time.sleep(0.05)

    def end(self) -> None:
        self._thread.join(30)

    def _look(self) -> None:
        parts = urlsplit(self._file.read_text().strip())
        version = ""
        try:
            while True:
                with closing(http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=30)) as there:
                    there.request("GET", f"/report.json?after={version}")
                    told = json.loads(there.getresponse().read())
                version = told["version"]
                if "report" in told:
                    self.reports.append(told["report"])
                    if self.heard_s is None and told["report"]["headline"]["incidents"]:
                        self.heard_s = time.time()
                if self.reports and self.reports[-1]["headline"]["ending"]:
                    return
        except (OSError, http.client.HTTPException):
            return  # the run has ended


def test_a_fault_is_on_the_page_and_status_knows_the_run_by_its_name(hosts: Any, tmp_path: Path) -> None:
    visitor, statuses = Visitor(tmp_path / "run"), []

    def kill(state: RunState) -> None:
        visitor.begin()
        process = start_python(CLI, tmp_path, "status", "seen", "--json", "--address", hosts.address)
        statuses.append(process.communicate(timeout=120))
        member = next(worker for worker in state.workers.values() if worker.standing is Standing.MEMBER)
        os.kill(member.pid, signal.SIGKILL)
        struck.append(time.time())

    struck: list[float] = []
    scaling = elastic.Scaling(num_dp_replicas=(1, 3), resources_per_worker={"CPU": 1})
    result = fit(tmp_path, At(40, kill), name="seen", steps=STEPS, scaling=scaling)
    visitor.end()
    assert len(result.incidents) >= 1, "the fault took place"
    assert visitor.heard_s is not None and visitor.heard_s - struck[0] < WITHIN_S
    story = next(one for one in visitor.reports[-1]["incidents"] if one["is_failure"])
    assert story["culprits"] and story["evidence"]
    first = visitor.reports[0]["headline"]
    assert first["run"] == "seen" and first["phase"] != "ended" and first["step"] >= 0
    spent = visitor.reports[-1]["waterfall"]
    assert sum(one["wall_s"] for one in spent["spent"]) == pytest.approx(spent["wall_s"], rel=1e-3)
    facts = json.loads(statuses[0][0])
    assert facts["run"] == "seen" and facts["page"].startswith("http://127.0.0.1:") and facts["step"] >= 0
    assert {one["path"]: one["source"] for one in visitor.reports[0]["settings"]}["name"] == "fit(name=...)"
    assert not (tmp_path / "run" / "page.url").exists()


# Notes when the number of failures on the page has changed, as whoever looks at it would see it.
WATCH = """
window.seen = [];
const failures = () => [...document.querySelectorAll("#figures > div")]
  .find((one) => one.querySelector("dt").textContent === "failures")?.querySelector("dd").firstChild.textContent;
let before = failures();
new MutationObserver(() => {
  const now = failures();
  if (now !== before) window.seen.push([before = now, Date.now() / 1000]);
}).observe(document.querySelector("#figures"), { childList: true, subtree: true, characterData: true });
before
"""


@needs_browser
def test_a_browser_that_looks_at_a_run_shows_its_faults_within_two_seconds(hosts: Any, tmp_path: Path) -> None:
    struck: list[float] = []
    tabs: list[Tab] = []

    def kill(state: RunState) -> None:
        members = state.standing(Standing.MEMBER)
        os.kill(members[-1].pid, signal.SIGKILL)
        struck.append(time.time())

    def look_and_kill(state: RunState) -> None:
        tabs.append(chromium.tab())
        tabs[0].go((tmp_path / "run" / "page.url").read_text().strip())
        tabs[0].wait("document.querySelectorAll('#figures > div').length > 0")
        assert tabs[0].evaluate(WATCH) == "0"
        kill(state)

    scaling = elastic.Scaling(num_dp_replicas=(1, 3), resources_per_worker={"CPU": 1})
    with browser(tmp_path / "chromium") as chromium:
        first, second = At(40, look_and_kill), At(STEPS // 3, kill)
        result = fit(tmp_path, first, second, name="watched", steps=STEPS, scaling=scaling)
        seen = dict(tabs[0].evaluate("window.seen"))
    assert len(struck) == 2 and len(result.incidents) == 2, "the faults took place"
    took_s = [seen[str(number + 1)] - at_s for number, at_s in enumerate(struck)]
    assert max(took_s) < WITHIN_S and min(took_s) < QUICKLY_S, took_s
