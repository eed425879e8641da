"""The live page's server: nothing runs until somebody looks; who may look; what it tells; how it ends."""

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from elastic.errors import SettingError
from elastic.report import window as windows
from elastic.report.server import Live
from elastic.report.window import URL_FILE, window
from elastic.settings import Page
from tests.effects.helpers import eventually
from tests.pure.report_lines import Scribe, a_night, written

LONG_S = 30.0


def get(url: str, path: str = "", host: str | None = None, **headers: str) -> tuple[int, str]:
    """Status and body; a path replaces that of the URL, and its query."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=LONG_S)) as connection:
        named = {"Host": host} if host else {}
        connection.request("GET", path or f"{parts.path}?{parts.query}", headers=named | headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def children() -> list[str]:
    """Command lines of servers that this process has started."""
    told = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True)
    return [line for line in told.stdout.splitlines() if "elastic.report.server" in line]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(a_night().lines, tmp_path / "run")


@pytest.fixture
def url(run: Path) -> Iterator[str]:
    with window(Page(), run, run / "journal.jsonl", "night") as url:
        yield url


def test_nothing_runs_until_somebody_looks_and_nothing_is_left(run: Path) -> None:
    with window(Page(), run, run / "journal.jsonl", "night") as url:
        assert url.startswith("http://127.0.0.1:") and (run / URL_FILE).read_text().strip() == url
        assert children() == []
        assert get(url)[0] == 200
        assert len(children()) == 1
    assert children() == [] and not (run / URL_FILE).exists()
    with pytest.raises(ConnectionRefusedError):
        get(url)


def test_it_is_served_by_a_process_with_many_open_files(run: Path) -> None:
    with ExitStack() as stack:
        for _ in range(1100):  # select(2) knows descriptors up to 1023
            stack.enter_context(open(os.devnull, "rb"))
        with window(Page(), run, run / "journal.jsonl", "night") as url:
            assert get(url)[0] == 200


def test_what_it_serves(url: str) -> None:
    status, text = get(url)
    assert status == 200 and 'data-live="yes"' in text and 'src="charts.js"' in text
    status, text = get(url, "/report.json")
    told = json.loads(text)
    assert status == 200 and told["report"]["headline"]["run"] == "night" and told["silent_s"] is None
    assert "plotly" in get(url, "/charts.js")[1][:2000]
    assert get(url, "/journal.jsonl")[0] == 404 and get(url, "/../token")[0] == 404


def test_it_changes_nothing(url: str) -> None:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=LONG_S)) as connection:
        connection.request("POST", "/", body="stop")
        assert connection.getresponse().status == 501


def test_news_come_when_there_are_some(tmp_path: Path) -> None:
    scribe = Scribe(began_s=time.time())
    scribe.begin()
    run = written(scribe.lines, tmp_path / "run")
    with window(Page(), run, run / "journal.jsonl", "night") as url:
        first = json.loads(get(url, "/report.json?after=")[1])
        found: list[dict[str, Any]] = []
        path = f"/report.json?after={first['version']}"

        def ask() -> None:  # an answer without news comes after some seconds
            deadline_s = time.monotonic() + LONG_S
            while not found and time.monotonic() < deadline_s:
                answer = json.loads(get(url, path)[1])
                found.extend([answer] if "report" in answer else [])

        asking = threading.Thread(target=ask)
        asking.start()
        scribe.start(["w0"], ["a"])
        written(scribe.lines, run)
        asking.join(2 * LONG_S)
        assert found[0]["report"]["headline"]["workers"] == 1


def test_without_news_only_the_silence_is_told(tmp_path: Path) -> None:
    scribe = Scribe(began_s=time.time() - 60)
    scribe.begin()
    live = Live(written(scribe.lines, tmp_path / "run") / "journal.jsonl")
    first = json.loads(live.newer("", within_s=0))
    assert first["report"]["headline"]["phase"] == "starting"
    same = json.loads(live.newer(first["version"], within_s=0.2))
    assert same["version"] == first["version"] and "report" not in same and same["silent_s"] >= 60
    nothing = json.loads(Live(tmp_path / "nowhere").newer("", within_s=0))
    assert "report" not in nothing and nothing["silent_s"] is None


def test_a_page_for_others_needs_its_token(run: Path) -> None:
    with window(Page(host="0.0.0.0"), run, run / "journal.jsonl", "night") as told:
        path = run / URL_FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        whole = path.read_text().strip()
        token = whole.partition("?token=")[2]
        assert len(token) >= 24 and token not in told, "what is logged does not open the page"
        url = f"http://127.0.0.1:{urlsplit(whole).port}/"
        assert get(url)[0] == get(url, "/report.json")[0] == get(url, "/?token=no")[0] == 401
        assert get(url, f"/?token={token}")[0] == 200
        assert get(url, "/report.json", Authorization=f"Bearer {token}")[0] == 200
        line = subprocess.run(["ps", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True).stdout
        assert token not in line


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "10.1.2.3"])
def test_a_strange_name_that_leads_here_is_told_nothing(url: str, host: str) -> None:
    assert get(url, "/report.json", host=host)[0] == 421
    assert get(url, "/report.json", host="localhost:1234")[0] == 200


@pytest.mark.parametrize("target, host", [("/", "["), ("http://[", "localhost")])
def test_what_cannot_be_read_is_refused_and_no_error_of_the_server(
    target: str, host: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), LONG_S) as asked:
        asked.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert asked.recv(64).startswith(b"HTTP/1.1 400 ")
    assert get(url)[0] == 200 and "Traceback" not in capfd.readouterr().err


def test_a_server_that_dies_comes_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_AGAIN_S", 0.05)
    with window(Page(), run, run / "journal.jsonl", "night") as url:
        get(url)
        (first,) = [int(line.split()[0]) for line in children()]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: all(int(line.split()[0]) != first for line in children()), "it is gone")
        assert get(url)[0] == 200
        assert [int(line.split()[0]) for line in children()] != [first]


def test_no_page_is_asked_for(run: Path) -> None:
    with window(Page(port=None), run, run / "journal.jsonl", "night") as url:
        assert url == "" and not (run / URL_FILE).exists()


def test_a_port_that_is_taken_is_named(run: Path, url: str) -> None:
    port = urlsplit(url).port
    taken = window(Page(port=port), run, run / "journal.jsonl", "night")
    with pytest.raises(SettingError, match=rf"Page.port={port}: nothing can listen there .*port=0"), taken:
        pass
