"""What the client makes of each answer, from a server that gives but one."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from elastic.kube.client import KubeClient, connect
from elastic.kube.errors import KubeError, Why, told_apart
from elastic.kube.objects import JobState

pytest.importorskip("kubernetes")

HELD = {"message": "Cannot evict pod", "details": {"causes": [{"reason": "DisruptionBudget", "message": "0 allowed"}]}}
BUSY = {"message": "too many requests, please try again later"}


class Answers(BaseHTTPRequestHandler):
    """Says the next thing, the last one again and again."""

    said: list[tuple[int, Any]] = []  # noqa: RUF012 - set by each test
    pause_s = 0.0  # after each byte

    def do_GET(self) -> None:
        status, body = self.said.pop(0) if len(self.said) > 1 else self.said[0]
        text = body if isinstance(body, bytes) else json.dumps(body).encode() + b"\n"  # which ends an event of a watch
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if not self.pause_s:
            self.wfile.write(text)
            return
        with contextlib.suppress(OSError):  # whoever asked has left
            for number in range(len(text)):
                self.wfile.write(text[number : number + 1])
                time.sleep(self.pause_s)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def client(tmp_path) -> Iterator[KubeClient]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {
        "clusters": [cluster],
        "contexts": [context],
        "current-context": "c",
        "users": [{"name": "u", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    made = connect("default", str(tmp_path / "config"), call_s=5.0)
    yield made
    made.close()
    server.shutdown()
    thread.join(30)
    server.server_close()


@pytest.mark.parametrize("variable", [None, "", "other"])
def test_a_variable_that_is_empty_names_no_configuration(client, tmp_path, monkeypatch, variable):
    (tmp_path / ".kube").mkdir()
    (tmp_path / "config").rename(tmp_path / ".kube" / "config")
    text = (tmp_path / ".kube" / "config").read_text()
    (tmp_path / "other").write_text(text.replace("127.0.0.1", "127.0.0.2"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if variable is not None:
        monkeypatch.setenv("KUBECONFIG", variable and str(tmp_path / variable))
    found = connect("default")
    assert found._api.configuration.host.startswith("http://127.0.0.2" if variable else "http://127.0.0.1")
    found.close()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, {}, Why.UNKNOWN),
        (403, {}, Why.FORBIDDEN),
        (404, {}, Why.MISSING),
        (405, {}, Why.REFUSED),
        (409, {}, Why.CONFLICT),
        (410, {}, Why.REFUSED),
        (422, {}, Why.INVALID),
        (429, BUSY, Why.BUSY),
        (429, {"message": "x", "details": {}}, Why.BUSY),
        (429, {"message": "x", "details": {"causes": ["many"]}}, Why.BUSY),
        (429, HELD, Why.HELD),
        (500, {}, Why.BUSY),
        (503, HELD, Why.BUSY),
    ],
)
def test_each_status_says_what_it_says(client, status, body, why):
    Answers.said = [(status, body)]
    with pytest.raises(KubeError, match=why.value) as caught:
        client.evict("p")
    assert (caught.value.why, caught.value.status) == (why, status)


@pytest.mark.parametrize("error", [ConnectionResetError(), TimeoutError("\n"), OSError(5, "x")], ids=repr)
def test_an_end_of_the_connection_is_one_whatever_is_said_of_it(error):
    with pytest.raises(KubeError, match="does not answer") as caught, told_apart("list the pods"):
        raise error
    assert caught.value.why is Why.UNREACHABLE and "\n" not in str(caught.value)


def test_a_server_that_has_too_much_to_do_is_asked_again(client):
    job = {"metadata": {"resourceVersion": "1"}, "status": {"jobDeploymentStatus": "Running"}}
    Answers.said = [(429, BUSY), (503, {}), (200, job)]
    with pytest.raises(TimeoutError, match="is running after"):
        client.wait_for_job("j", lambda one: False, 3.0, lambda one: None)


def test_a_watch_from_too_long_ago_begins_anew(client):
    """What the server says of it comes with status 200, as an event."""

    def job(version: str, deployed: str) -> tuple[int, Any]:
        status = {"jobDeploymentStatus": deployed, "jobStatus": "SUCCEEDED"}
        return 200, {"metadata": {"resourceVersion": version}, "status": status}

    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}
    Answers.said = [job("1", "Running"), (200, {"type": "ERROR", "object": gone}), job("9", "Complete")]
    told: list[JobState] = []
    end = client.wait_for_job("j", lambda one: False, 30.0, lambda one: told.append(one.state))
    assert end.state is JobState.SUCCEEDED and told == [JobState.RUNNING, JobState.SUCCEEDED]


@pytest.mark.parametrize("call", ["groups", "pods", "machines", "quarantine"])
def test_a_server_that_answers_a_byte_at_a_time_is_waited_for_no_longer_than_another(client, monkeypatch, call):
    monkeypatch.setattr(Answers, "pause_s", 0.1)
    Answers.said = [(200, {"items": [], "padding": "x" * 300})]
    client._call_s = 0.5
    calls = {"groups": lambda: client.groups("c"), "pods": lambda: client.pods("c")}
    calls |= {"machines": client.machines, "quarantine": lambda: client.quarantine("m", "llama", 1.0)}
    began_s = time.monotonic()
    with pytest.raises(KubeError, match=r"takes longer than 0\.5 s") as caught:
        calls[call]()
    assert caught.value.why is Why.UNREACHABLE and time.monotonic() - began_s < 5.0


RUNNING = {"metadata": {"resourceVersion": "1"}, "status": {"jobDeploymentStatus": "Running"}}
EVENT = json.dumps({"type": "MODIFIED", "object": RUNNING}).encode()


@pytest.mark.parametrize("watched", [EVENT[:-1] + b" " * 20_000, (EVENT + b"\n") * 200], ids=["bytes", "events"])
def test_a_watch_that_never_comes_to_an_end_is_left_at_the_deadline(client, monkeypatch, watched):
    monkeypatch.setattr(Answers, "pause_s", 0.001)
    Answers.said = [(200, RUNNING), (200, watched)]
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match=r"is running after 2 s"):
        client.wait_for_job("j", lambda one: False, 2.0, lambda one: None)
    assert time.monotonic() - began_s < 8.0


def test_what_is_refused_ends_the_wait(client):
    Answers.said = [(405, {})]
    began_s = time.monotonic()
    with pytest.raises(KubeError) as caught:
        client.wait_for_job("j", lambda one: False, 60.0, lambda one: None)
    assert caught.value.why is Why.REFUSED and time.monotonic() - began_s < 30.0


@pytest.mark.parametrize("body", [None, [], {"items": None}, {"items": [{}]}, {"items": [{"metadata": None}]}])
@pytest.mark.parametrize("call", ["pods", "machines", "job", "groups"])
def test_an_answer_that_nobody_can_read_is_an_error_like_others(client, call, body):
    Answers.said = [(200, body)]
    calls = {"pods": lambda: client.pods("c"), "groups": lambda: client.groups("c")}
    calls |= {"machines": client.machines, "job": lambda: client.job("j")}
    if call == "job" and isinstance(body, dict):
        assert calls[call]().state is JobState.WAITING, "all of it may be missing"
        return
    with pytest.raises(KubeError) as caught:
        calls[call]()
    assert caught.value.why is Why.GARBLED
