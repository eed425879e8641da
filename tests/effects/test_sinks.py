"""Effect. Sinks: what is written and posted, and that no server, however it behaves, holds anybody up."""

import http.server
import io
import json
import logging
import struct
import sys
import threading
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import pytest

from elastic.control.moments import GaveUp, IncidentOpened, NodeQuarantined, Resized, RungReached
from elastic.control.values import Incident, IncidentClass, Rung
from elastic.errors import SettingError
from elastic.sinks import JsonLog, SlackWebhook, TensorBoardText, Webhook
from tests.lines import whole_lines

GENEROUS_S = 30.0
SHORT_S = 0.3
CUT_S = 3.0  # long enough to tell a caller that waited from one whose machine is busy
SECRET = "T000-B000-s3cr3t"

LOST = Incident(number=0, kind=IncidentClass.WORKER_LOST, opened_at_s=1.0, culprits=("w1",))
OPENED = IncidentOpened(run="r", at_s=1.0, step=4, incident=LOST)
RUNG = RungReached(run="r", at_s=2.0, step=9, checkpoint_step=8, rung=Rung.DURABLE, copies=2, degraded="", reason="up")
GAVE_UP = GaveUp(run="r", at_s=3.0, step=9, error="TrainFnError", message="it raised <!channel> & ended")


def resized(step: int) -> Resized:
    return Resized(run="r", at_s=float(step), step=step, generation=2, replicas_before=3, replicas=2)


class Server(http.server.ThreadingHTTPServer):
    """Keeps what was posted, and answers as `answers` says, one after the other, the last one for ever.

    An answer is a status, or what is to be done with the handler.
    """

    def __init__(self, *answers: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posted: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answers = list(answers) or [200]
        self.is_released = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/services/{SECRET}?key={SECRET}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is the point of some tests."""

    def wait_for(self, posts: int) -> None:
        deadline_s = time.monotonic() + GENEROUS_S
        while len(self.posted) < posts and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert len(self.posted) == posts


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((self.path, content, dict(self.headers)))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if callable(answer):
            answer(self)
        else:
            self.send_response(answer)
            self.end_headers()

    def do_GET(self) -> None:
        self.server.posted.append((self.path, {}, {}))

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def hang(handler: Handler) -> None:
    handler.server.is_released.wait(GENEROUS_S)


def drip(handler: Handler) -> None:
    """A byte now and then, so that no single read of the client takes long."""
    for byte in b"HTTP/1.1 200 OK" + b" " * 1000:
        handler.wfile.write(bytes([byte]))
        if handler.server.is_released.wait(CUT_S / 4):
            return


@pytest.fixture
def servers() -> Iterator[Any]:
    made: list[Server] = []

    def make(*answers: Any) -> Server:
        made.append(Server(*answers))
        return made[-1]

    yield make
    for server in made:
        server.is_released.set()
        server.shutdown()
        server.server_close()


def end(sink: Webhook) -> None:
    """Within its deadline."""
    started_s = time.monotonic()
    sink.on_end()
    assert time.monotonic() - started_s < GENEROUS_S


def until_failed(sink: Webhook, number: int) -> None:
    deadline_s = time.monotonic() + GENEROUS_S
    while sink.failed < number and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert sink.failed == number


# --- webhooks ---------------------------------------------------------------------------------------------------------


def test_a_moment_is_posted_as_json(servers: Any) -> None:
    server = servers()
    sink = Webhook(server.url, headers={"Authorization": "Bearer x"})
    sink.on_moment(OPENED)
    sink.on_moment(RUNG)
    end(sink)
    (path, opened, headers), (_, rung, _) = server.posted
    assert path == f"/services/{SECRET}?key={SECRET}"
    assert (headers["Content-Type"], headers["Authorization"]) == ("application/json", "Bearer x")
    assert (opened["moment"], opened["run"], opened["step"]) == ("incident_opened", "r", 4)
    assert (opened["incident"]["kind"], opened["incident"]["culprits"]) == ("worker_lost", ["w1"])
    assert opened["text"] == "incident 0 opened: worker lost: w1"
    assert (rung["moment"], rung["rung"], rung["checkpoint_step"]) == ("rung_reached", "durable", 8)
    assert sink.failed == 0


def test_slack_gets_a_line_of_text_without_commands_in_it(servers: Any) -> None:
    server = servers()
    sink = SlackWebhook(server.url)
    for moment in (OPENED, RUNG, GAVE_UP):
        sink.on_moment(moment)
    end(sink)
    assert [content for _, content, _ in server.posted] == [
        {"text": "[r] incident 0 opened: worker lost: w1"},
        {
            "text": "[r] the run r gave up after step 9: TrainFnError: it raised &lt;!channel&gt; &amp; ended",
        },
    ]


def test_only_the_moments_that_are_wanted(servers: Any) -> None:
    server = servers()
    sink = Webhook(server.url, moments=["give_up"])
    for moment in (OPENED, RUNG, GAVE_UP):
        sink.on_moment(moment)
    end(sink)
    assert [content["moment"] for _, content, _ in server.posted] == ["give_up"]


def test_an_error_of_the_server_is_tried_again(servers: Any) -> None:
    server = servers(500, 200)
    sink = Webhook(server.url)
    sink.on_moment(OPENED)
    server.wait_for(2)
    end(sink)
    assert sink.failed == 0


def test_what_fails_every_time_is_dropped_and_told_without_the_secret(servers: Any, caplog: Any) -> None:
    server = servers(500)
    sink = Webhook(server.url, tries=2)
    with caplog.at_level(logging.DEBUG):
        sink.on_moment(OPENED)
        until_failed(sink, 1)
        end(sink)
    assert len(server.posted) == 2
    assert "Webhook 127.0.0.1: a moment was not posted: it answers 500" in caplog.text
    assert SECRET not in caplog.text + repr(sink)


@pytest.mark.parametrize("status", [400, 403, 404])
def test_what_the_server_refuses_is_not_repeated(servers: Any, status: int) -> None:
    server = servers(status)
    sink = Webhook(server.url)
    sink.on_moment(OPENED)
    until_failed(sink, 1)
    end(sink)
    assert len(server.posted) == 1


def test_a_redirection_is_not_followed(servers: Any) -> None:
    other = servers()

    def redirect(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", other.url)
        handler.end_headers()

    sink = Webhook(servers(redirect).url)
    sink.on_moment(OPENED)
    until_failed(sink, 1)
    end(sink)
    assert other.posted == []


@pytest.mark.parametrize("behaviour", [hang, drip])
def test_a_server_that_does_not_come_to_an_end_is_cut_off(servers: Any, caplog: Any, behaviour: Any) -> None:
    server = servers(behaviour)
    sink = Webhook(server.url, timeout_s=CUT_S, tries=1)
    started_s = time.monotonic()
    sink.on_moment(OPENED)
    sink.on_moment(GAVE_UP)
    assert time.monotonic() - started_s < CUT_S, "the caller has waited"
    until_failed(sink, 2)
    end(sink)
    assert SECRET not in caplog.text


def test_nobody_listens(caplog: Any) -> None:
    sink = Webhook(f"http://127.0.0.1:1/{SECRET}", tries=1)
    sink.on_moment(OPENED)
    until_failed(sink, 1)
    end(sink)
    assert "ConnectionRefusedError" in caplog.text and SECRET not in caplog.text


def test_what_waits_is_bounded_and_the_end_is_too(servers: Any, caplog: Any) -> None:
    server = servers(hang)
    sink = Webhook(server.url, timeout_s=SHORT_S, tries=10, capacity=4)
    started_s = time.monotonic()
    for step in range(1000):
        sink.on_moment(resized(step))
    assert time.monotonic() - started_s < GENEROUS_S
    end(sink)
    assert caplog.text.count("does not keep up: moments are dropped") == 1
    assert "moments were not posted when the run ended" in caplog.text


def test_the_next_run_posts_again(servers: Any) -> None:
    server = servers(hang, 200)
    sink = Webhook(server.url, timeout_s=SHORT_S, tries=1)
    sink.on_moment(OPENED)
    end(sink)
    sink.on_moment(GAVE_UP)
    end(sink)
    assert [content["moment"] for _, content, _ in server.posted] == ["incident_opened", "give_up"]


def test_a_header_that_cannot_be_sent_is_told_without_it(servers: Any, caplog: Any) -> None:
    sink = Webhook(servers().url, headers={"Authorization": f"{SECRET}\n"}, tries=1)
    sink.on_moment(OPENED)
    until_failed(sink, 1)
    end(sink)
    assert "ValueError" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize("url", ["", SECRET, f"file:///{SECRET}", f"ftp://host/{SECRET}", f"https:///{SECRET}"])
def test_what_is_no_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingError, match=r"must be http://host/... or https://host/...") as caught:
        Webhook(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("host", [f"me:{SECRET}@host", f"{SECRET}@host", "host:port", "host:99999", "host:0"])
def test_a_url_that_no_request_can_be_made_of_is_refused_and_not_shown(host: str) -> None:
    with pytest.raises(SettingError, match="headers=") as caught:
        Webhook(f"https://{host}/")
    assert SECRET not in str(caught.value)


def test_a_deadline_that_never_comes_is_refused() -> None:
    with pytest.raises(SettingError, match="timeout_s=inf"):
        Webhook("https://host/", timeout_s=inf)


@pytest.mark.parametrize("setting", [{"timeout_s": 0}, {"tries": 0}, {"capacity": 0}], ids=str)
def test_numbers_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(setting))}=0.*must be positive"):
        Webhook("https://host/", **setting)


def test_a_moment_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"there is no 'giveup'; did you mean give_up\?"):
        JsonLog(moments=["giveup"])


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_line_for_each_moment(tmp_path: Path) -> None:
    sink = JsonLog(tmp_path / "new" / "moments.jsonl")
    sink.on_moment(OPENED)
    sink.on_moment(RUNG)
    sink.on_end()
    lines = whole_lines(tmp_path / "new" / "moments.jsonl")
    assert [line["moment"] for line in lines] == ["incident_opened", "rung_reached"]
    assert lines[0]["incident"]["culprits"] == ["w1"] and lines[1]["rung"] == "durable"


def test_a_quarantine_for_good_is_a_line_that_any_reader_of_json_takes(capsys: Any) -> None:
    JsonLog().on_moment(NodeQuarantined(run="r", at_s=1.0, step=0, node="n1", until_s=inf))
    line = json.loads(capsys.readouterr().err, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (line["until_s"], line["text"]) == (None, "node n1 is in quarantine for good")


def test_a_stderr_that_is_gone_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for gone in (None, io.StringIO()):
        if gone is not None:
            gone.close()
        monkeypatch.setattr(sys, "stderr", gone)
        JsonLog().on_moment(OPENED)


def test_lines_go_to_stderr_without_a_path(capsys: Any) -> None:
    JsonLog().on_moment(OPENED)
    assert json.loads(capsys.readouterr().err)["moment"] == "incident_opened"


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").touch()
    sink = JsonLog(tmp_path / "file" / "moments.jsonl")
    sink.on_moment(OPENED)
    sink.on_moment(OPENED)
    assert caplog.text.count("moments are not written to") == 1


def test_tensorboard_gets_the_text_at_its_step(tmp_path: Path) -> None:
    sink = TensorBoardText(tmp_path)
    sink.on_moment(OPENED)
    sink.on_moment(RUNG)
    sink.on_end()
    sink.on_end()
    assert texts(tmp_path) == [
        ("elastic/incident_opened/text_summary", 4, 1.0, "incident 0 opened: worker lost: w1"),
        ("elastic/rung_reached/text_summary", 8, 2.0, "step 8 is durable"),
    ]


def texts(folder: Path) -> list[tuple[str, int, float, str]]:
    """(tag, step, time, text) of all text summaries in the event files of a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in folder.glob("events.*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                found.append((value.tag, event.step, event.wall_time, value.tensor.string_val[0].decode()))
    return found
