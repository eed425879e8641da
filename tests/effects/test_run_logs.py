"""Effect. A worker's lines on their way to files, the terminal, and the persistent tier."""

import io
import json
import logging
import os
import sys
import threading
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elastic.actors.logs_copy import LogsCopy
from elastic.actors.run_logs import RunLogs
from elastic.checkpoint.records import opened
from elastic.checkpoint.stores.directory import DirectoryStore
from elastic.control import events as ev
from elastic.control.adoption import Adopted
from elastic.control.logs import LogLine
from elastic.control.worker_protocol import Stage, WorkerState
from elastic.settings import Logs, RunSettings
from elastic.train.host import WorkerHost, WorkerSpec
from elastic.train.logs import KEPT, LogBuffer
from tests.effects.helpers import HOST, LONG_S, Running, child, eventually, hear
from tests.lines import whole_lines

LINE = LogLine(at_s=1.0, level="warning", logger="train", generation=3, step=9, rank=2, text="hot 91", kind="hot %d")
SETTINGS = RunSettings(run="night", logs=Logs(level="info"))


@pytest.fixture
def logger():
    """One of its own, so that nobody else's lines come along."""
    made = logging.getLogger("test.run.logs")
    made.propagate, before = False, made.level
    made.setLevel(logging.DEBUG)
    yield made
    made.handlers.clear()
    made.propagate = True
    made.setLevel(before)


@pytest.fixture
def buffer(logger):
    made = LogBuffer("w4", Logs(level="info"), lambda: (3, 9, 2))
    logger.addHandler(made)
    return made


def lines_of(buffer: LogBuffer) -> list[LogLine]:
    return [line for event in buffer.taken() for line in event.lines]


def test_what_is_logged_is_kept_with_where_the_worker_stood(logger, buffer):
    logger.warning("hot %d", 91)
    logger.debug("not this")
    try:
        1 / 0  # noqa: B018 - the point
    except ZeroDivisionError:
        logger.exception("it broke")
    one, two = lines_of(buffer)
    assert (one.level, one.text, one.kind, one.logger) == ("warning", "hot 91", "hot %d", "test.run.logs")
    assert (one.generation, one.step, one.rank) == (3, 9, 2)
    assert two.level == "error" and "ZeroDivisionError" in two.traceback
    assert lines_of(buffer) == [] and buffer.taken() == []


@pytest.mark.parametrize(
    ("number", "level"), [(5, "debug"), (10, "debug"), (20, "info"), (35, "warning"), (50, "error")]
)
def test_levels_between_are_rounded_down(logger, number, level):
    made = LogBuffer("w4", Logs(level="debug"), lambda: (0, 0, 0))
    made.setLevel(1)
    logger.setLevel(1)
    logger.addHandler(made)
    logger.log(number, "x")
    assert [line.level for line in lines_of(made)] == [level]


def test_values_that_do_not_fit_their_text_break_nothing(logger, buffer):
    buffer.handle(logging.LogRecord("train", logging.WARNING, __file__, 1, "%d sheep", ("many",), None))
    assert [line.text for line in lines_of(buffer)] == ["%d sheep"]


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("value", [({"loss": 1},), (Unspeakable(),)], ids=["of another name", "cannot be shown"])
def test_whoever_logs_goes_on(logger, buffer, value):
    """The standard library raises there neither: a log call must not end training."""
    buffer.handle(logging.LogRecord("train", logging.WARNING, __file__, 1, "%(norm)s", value, None))
    assert [line.text for line in lines_of(buffer)] == ["%(norm)s"]


def test_whoever_logs_what_cannot_be_shown_goes_on(logger, buffer):
    buffer.handle(logging.LogRecord("train", logging.ERROR, __file__, 1, Unspeakable(), None, None))
    assert [line.text for line in lines_of(buffer)] == ["a Unspeakable that cannot be shown: RuntimeError"]


def test_the_oldest_go_when_nobody_takes_them(logger, buffer):
    for number in range(KEPT + 5):
        logger.info("line %d", number)
    lines = lines_of(buffer)
    assert len(lines) == KEPT and lines[0].text == "line 5"


def test_who_logs_waits_for_no_lock_of_others(logger):
    """The training thread logs while it holds a lock, and a thread that logs waits for that lock."""
    lock, is_held, is_waiting = threading.Lock(), threading.Event(), threading.Event()

    def where():
        if threading.current_thread() is not threading.main_thread():
            is_waiting.set()
            with lock:
                pass
        return 0, 0, 0

    made = LogBuffer("w0", Logs(), where)
    logger.addHandler(made)
    with lock:
        is_held.set()
        other = Running(lambda: logger.warning("from the other"))
        assert is_waiting.wait(10)
        logger.warning("from the one that holds it")
    other.result()
    assert len(lines_of(made)) == 2


def talk_once(session) -> None:
    """A train_fn that says something and leaves."""
    logging.getLogger("train").warning("on %s", session.worker)
    raise SystemExit("enough")


def serve_worker(pipe) -> None:
    """A child's main: a worker's process, as a driver finds it."""
    settings = RunSettings(run=f"logs-{os.getpid()}")
    host = WorkerHost(WorkerSpec(worker="w7", seed=0, settings=settings, train_fn=talk_once), host=HOST)
    told = []
    while not any(isinstance(event, ev.WorkerDeparted) for event in told):
        told += host.events(LONG_S)
    told += host.events(0)
    host.end()
    pipe.send([line for event in told if isinstance(event, ev.Logged) for line in event.lines])


def test_a_worker_hands_its_lines_over_with_its_news():
    with child(serve_worker) as (_, pipe):
        said = [line for line in hear(pipe) if line.logger == "train"]
    assert [(line.text, line.level, line.generation, line.rank) for line in said] == [("on w7", "warning", 0, -1)]


# --- in the driver ----------------------------------------------------------------------------------------------------


def read(folder, name):
    return whole_lines(folder / "logs" / f"{name}.jsonl")


def test_each_worker_has_a_file_and_the_driver_too(tmp_path):
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        assert not logs.heed(ev.WorkerPlaced(worker="w4", node="n1"))
        assert logs.heed(ev.Logged(worker="w4", lines=(LINE, LINE)))
        assert not logs.heed(ev.Tick())
        logging.getLogger("elastic").info("the driver says")
    one, two = read(tmp_path, "w4")
    assert one == two == LINE.facts("night", 1, "w4", "n1")
    assert "the driver says" in [line["text"] for line in read(tmp_path, "driver")]


def test_a_worker_that_was_taken_over_is_on_the_node_where_it_was_found(tmp_path):
    """A driver that adopts it places it nowhere."""
    found = Adopted(worker="w4", gang=4, shard=0, pid=7, was=Stage.STEPPING, state=WorkerState(), node="n1")
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        assert not logs.heed(ev.RunTakenOver(found=(found,)))
        logs.heed(ev.Logged(worker="w4", lines=(LINE,)))
    assert [line["node"] for line in read(tmp_path, "w4")] == ["n1"]


def test_who_is_no_worker_says_its_role_and_its_node(tmp_path, caplog):
    said = ev.Logged(worker="monitor-a1", lines=(LINE,), role="monitor", node="a1b2")
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        assert logs.heed(said)
        logging.getLogger("elastic").info("the driver says")
    (line,) = read(tmp_path, "monitor-a1")
    assert (line["role"], line["node"], line["text"]) == ("monitor", "a1b2", "hot 91")
    assert {one["role"] for one in read(tmp_path, "driver")} == {"driver"}
    assert [one.getMessage() for one in caplog.records if "hot" in one.getMessage()] == ["monitor-a1: hot 91"]


def test_a_file_that_is_full_is_put_aside_and_the_copy_goes_on(tmp_path):
    """What is kept of a process is bounded; what is copied is all of it, once."""
    store, texts = DirectoryStore(tmp_path / "store"), [f"line {number:02d}" for number in range(23)]
    with RunLogs(tmp_path, SETTINGS, io.StringIO(), most_bytes=2000) as logs:
        logs.folder.mkdir()
        copy = LogsCopy(logs, store, "night", 1, period_s=LONG_S)
        for number, text in enumerate(texts):
            logs.heed(ev.Logged(worker="w4", lines=(replace(LINE, text=text),)))
            if number % 3 == 0:
                copy.copy()
        copy.close()
    kept = [json.loads(line)["text"] for line in (logs.folder / "w4.jsonl.1").read_text().splitlines()]
    kept += [line["text"] for line in read(tmp_path, "w4")]
    assert kept == texts[-len(kept) :] and len(kept) < len(texts)
    assert sum(path.stat().st_size for path in logs.folder.glob("w4*")) < 4500
    copied = [
        str(opened("log", store.read(item.key))["text"]) for item in store.list("night/logs/") if "w4" in item.key
    ]
    assert [json.loads(line)["text"] for line in "".join(copied).splitlines()] == texts
    store.close()


def test_the_same_of_many_workers_is_shown_once(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        for number in range(4):
            logs.heed(ev.Logged(worker=f"w{number}", lines=(LINE,)))
    assert [one.getMessage() for one in caplog.records] == [
        "w0 (rank 2, step 9): hot 91",
        "3 more from 3 workers: hot 91",
    ]
    assert [one.levelname for one in caplog.records] == ["WARNING", "WARNING"]


def test_what_came_again_is_told_though_no_other_line_comes(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    now_s = [100.0]
    monkeypatch.setattr("elastic.actors.run_logs.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        for _ in range(3):
            logs.heed(ev.Logged(worker="w0", lines=(LINE,)))
        logs.heed(ev.Tick())
        assert len(caplog.records) == 1
        now_s[0] += 61.0
        logs.heed(ev.Tick())
        assert [one.getMessage() for one in caplog.records[1:]] == ["2 more from 1 worker: hot 91"]


def test_news_may_be_heeded_by_many_threads_at_once(tmp_path):
    """The fleet's, the control's and the tiers' threads all do."""
    lines = [replace(LINE, kind=f"kind {number}", text=str(number)) for number in range(300)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
            talking = [
                Running(lambda name=name: [logs.heed(ev.Logged(worker=name, lines=(line,))) for line in lines])
                for name in ("w0", "w1", "w2")
            ]
            for one in talking:
                one.result()
    finally:
        sys.setswitchinterval(before)


def test_where_nobody_else_shows_them_lines_go_to_the_stream(tmp_path, monkeypatch):
    root, log, stream = logging.getLogger(), logging.getLogger("elastic"), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    with RunLogs(tmp_path, SETTINGS, stream) as logs:
        log.info("a line for people")
        logs.heed(ev.Logged(worker="w4", lines=(LINE,)))
    log.info("afterwards")
    shown = stream.getvalue().splitlines()
    assert [line.split(" ", 1)[1] for line in shown] == [
        "INFO a line for people",
        "WARNING w4 (rank 2, step 9): hot 91",
    ]
    assert log.handlers == [] and log.level == logging.NOTSET


def test_of_two_runs_in_a_process_the_first_to_end_takes_nothing_from_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log = logging.getLogger("elastic")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "level", logging.NOTSET)
    first, second = io.StringIO(), io.StringIO()
    one, other = (RunLogs(tmp_path / name, SETTINGS, stream) for name, stream in (("a", first), ("b", second)))
    one.__enter__()
    with other:
        one.__exit__(None, None, None)
        log.info("it goes on")
    assert "it goes on" in first.getvalue(), "the handler that both use"
    assert [line["text"] for line in whole_lines(tmp_path / "b" / "logs" / "driver.jsonl")] == ["it goes on"]
    assert log.handlers == [] and log.level == logging.NOTSET


def test_a_full_disk_ends_nothing_and_is_told_once(tmp_path):
    (tmp_path / "logs").write_text("a file")
    stream = io.StringIO()
    with RunLogs(tmp_path, SETTINGS, stream) as logs:
        for _ in range(3):
            assert logs.heed(ev.Logged(worker="w4", lines=(LINE,)))
    assert stream.getvalue().count("logs are not written to") == 1


def test_a_full_disk_under_the_stream_as_well_ends_nothing(tmp_path):
    """As where a program's output goes to the disk on which its logs lie."""
    (tmp_path / "logs").write_text("a file")

    class Full(io.StringIO):
        tries = 0

        def write(self, text):
            self.tries += 1
            raise OSError(28, "No space left on device")

    stream = Full()
    with RunLogs(tmp_path, SETTINGS, stream) as logs:
        assert logs.heed(ev.Logged(worker="w4", lines=(LINE,)))
        logging.getLogger("elastic").warning("the driver says")
    assert stream.tries > 0


def test_lines_are_copied_to_the_persistent_tier_in_order(tmp_path):
    folder, store = tmp_path / "logs", DirectoryStore(tmp_path / "store")
    folder.mkdir()
    (folder / "w0.jsonl").write_text("of an earlier life\n")
    copy = LogsCopy(RunLogs(tmp_path, SETTINGS), store, "night", 2, period_s=0.02)
    with (folder / "w0.jsonl").open("a") as file:
        file.write("one\ntwo\nhalf a li")
    eventually(lambda: list(store.list("night/logs/")), "something is copied")
    with (folder / "w0.jsonl").open("a") as file:
        file.write("ne\n")
    (folder / "w1.jsonl").write_text("other\n")
    copy.close()
    found: dict[str, str] = {}
    for item in store.list("night/logs/"):
        name = item.key.split("/")[-1].split("-")[1]
        found[name] = found.get(name, "") + str(opened("log", store.read(item.key))["text"])
    assert found == {"w0": "one\ntwo\nhalf a line\n", "w1": "other\n"}
    store.close()


def test_what_is_logged_at_the_very_end_is_copied_too(tmp_path):
    """After a minute of the same, and after the tiers have told that they are closed."""
    store = DirectoryStore(tmp_path / "store")
    with RunLogs(tmp_path, SETTINGS, io.StringIO()) as logs:
        logs.emit(logging.makeLogRecord({"msg": "before the tier was known", "name": "elastic", "levelno": 30}))
        logs.afterwards.enter_context(closing(LogsCopy(logs, store, "night", 1, period_s=LONG_S)))
        for worker in ("w0", "w1"):
            logs.heed(ev.Logged(worker=worker, lines=(LINE,)))
    copied = "".join(
        str(opened("log", store.read(one.key))["text"]) for one in store.list("night/logs/0000000001-driver")
    )
    assert copied == (logs.folder / "driver.jsonl").read_text()
    texts = [json.loads(text)["text"] for text in copied.splitlines()]
    assert texts[0] == "before the tier was known" and texts[-1] == "1 more from 1 worker: hot 91"
    store.close()


def test_what_is_due_at_once_is_copied_before_the_next_look(tmp_path):
    store, logs = DirectoryStore(tmp_path / "store"), RunLogs(tmp_path, SETTINGS)
    with closing(LogsCopy(logs, store, "night", 1, period_s=LONG_S)) as copy:
        logs.heed(ev.Logged(worker="w4", lines=(LINE,)))
        copy.copy_now()
        eventually(lambda: list(store.list("night/logs/")), "it is copied")
    store.close()


def test_a_line_longer_than_a_segment_holds_nothing_up(tmp_path):
    folder, store = tmp_path / "logs", DirectoryStore(tmp_path / "store")
    folder.mkdir()
    copy = LogsCopy(RunLogs(tmp_path, SETTINGS), store, "night", 2, period_s=LONG_S)
    (folder / "w0.jsonl").write_text("x" * (3 << 20) + "\nnext\n" + "y" * (2 << 20))
    copy.close()
    texts = [str(opened("log", store.read(item.key))["text"]) for item in store.list("night/logs/")]
    assert "".join(texts) == "x" * (3 << 20) + "\nnext\n", "the last line is not whole yet"
    store.close()


def test_a_buffer_needs_no_lock_where_its_base_would_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.13 on it does so without a look at what it is."""

    def handle(self: logging.Handler, record: logging.LogRecord) -> bool:
        raise TypeError("'NoneType' object does not support the context manager protocol")

    monkeypatch.setattr(logging.Handler, "handle", handle)
    buffer = LogBuffer("w0", Logs())
    buffer.handle(logging.LogRecord("elastic", logging.WARNING, "here", 1, "so it is", None, None))
    ((told,),) = [one.lines for one in buffer.taken()]
    assert told.text == "so it is"
