"""Effect. Callbacks that carry moments out of the process: to a file, to TensorBoard, to a URL.

    elastic.fit(train_fn, callbacks=[Progress(), JsonLog("moments.jsonl"), SlackWebhook(os.environ["SLACK_URL"])])

None of them can end the run or hold it up: what cannot be written or posted is logged, and dropped.
"""

import contextlib
import difflib
import html
import http.client
import json
import logging
import os
import queue
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from elastic.callbacks import Callback
from elastic.callbacks.board import Board, Entry
from elastic.control.moments import NAMES, Moment, RungReached
from elastic.control.plain import plain
from elastic.errors import SettingError

log = logging.getLogger("elastic")

_PAUSE_S = 0.5  # before a second try; doubled before each further one


def facts(moment: Moment) -> dict[str, Any]:
    """A moment for a program: its name, its fields, and the sentence for people as "text"; no end of time is null."""
    known = {name: None if value == inf else value for name, value in plain(moment).items()}
    return {"moment": moment.name, "text": moment.sentence, **known}


class Sink(Callback):
    """Base: `put` is called with each of the chosen moments.

    Cost: nothing on workers, and nothing in steps: moments are rare, and written or posted where `fit` was called.

    Args:
        moments: names of those that are wanted; default: all.

    Raises:
        SettingError: there is no moment of a name.
    """

    def __init__(self, moments: Collection[str] = NAMES) -> None:
        for name in moments:
            if name not in NAMES:
                near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)
                raise SettingError(f"{type(self).__name__}(moments=...): there is no {name!r}; did you mean {near[0]}?")
        self._moments = frozenset(moments)

    def on_moment(self, moment: Moment) -> None:
        if moment.name in self._moments:
            self.put(moment)

    def put(self, moment: Moment) -> None:
        """Carry it out."""
        raise NotImplementedError


class JsonLog(Sink):
    """One JSON line for each moment, appended to a file.

    Args:
        path: of the file; None: stderr, where a cluster's log collector finds it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, moments: Collection[str] = NAMES) -> None:
        super().__init__(moments)
        self._path = None if path is None else Path(path)
        self._has_failed = False

    def put(self, moment: Moment) -> None:
        line = json.dumps(facts(moment)) + "\n"
        if self._path is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody may read it any more
                sys.stderr.write(line)
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(line)
            self._has_failed = False
        except OSError as error:  # a full disk ends no training
            if not self._has_failed:
                log.warning("moments are not written to %s: %s", self._path, error.strerror)
            self._has_failed = True


class TensorBoardText(Sink):
    """Moments as text, under "elastic/<moment>", at the step they belong to.

    Args:
        log_dir: where TensorBoard looks.
    """

    def __init__(self, log_dir: str | os.PathLike[str], moments: Collection[str] = NAMES) -> None:
        super().__init__(moments)
        self._log_dir = os.fspath(log_dir)
        self._board: Board | None = None

    def put(self, moment: Moment) -> None:
        step = moment.checkpoint_step if isinstance(moment, RungReached) else max(0, moment.step)
        if self._board is None:
            self._board = Board(self._log_dir, "moments")
        texts = {f"elastic/{moment.name}": moment.sentence}
        self._board.put(Entry(step=step, at_s=moment.at_s, texts=texts))

    def on_end(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None


def _has_port(parts: SplitResult) -> bool:
    """Whether a URL names a port that there can be, or none."""
    try:
        return parts.port != 0
    except ValueError:
        return False


class Webhook(Sink):
    """Posts each moment as JSON to a URL, from a thread of its own.

    A server that is slow, hangs, or answers with an error costs the run nothing: what waits is bounded, a try is cut
    off after `timeout_s`, and at its end `fit` waits at most that long for what is still to be posted. The URL is a
    secret: it is never shown, but for its host.

    Args:
        url: https:// or http://; redirections are not followed. headers: more of them, e.g. for authorization.
        timeout_s: of one try, from connecting to the status line. tries: of one moment; a request that the server
            refuses (4xx, but for 408 and 429) is not repeated.
        capacity: moments that may wait; more are dropped, which is logged.

    Raises:
        SettingError: the URL is none, or a number is out of its range.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        moments: Collection[str] = NAMES,
        timeout_s: float = 5.0,
        tries: int = 3,
        capacity: int = 256,
    ) -> None:
        super().__init__(moments)
        name, parts = type(self).__name__, urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingError(f"{name}(url=...) must be http://host/... or https://host/...; it is not shown here")
        if parts.username or parts.password or not _has_port(parts):
            raise SettingError(
                f"{name}(url=...) has a user or no valid port in it: give secrets as headers=; it is not shown"
            )
        if not (0 < timeout_s < threading.TIMEOUT_MAX and tries >= 1 and capacity >= 1):
            raise SettingError(f"{name}: timeout_s={timeout_s}, tries={tries} and capacity={capacity} must be positive")
        self._host = f"{name} {parts.hostname}"
        self._request = (url, {"Content-Type": "application/json", **(headers or {})})
        self._timeout_s, self._tries = timeout_s, tries
        self._waiting: queue.Queue[bytes | None] = queue.Queue(capacity)
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<{self._host}>"

    def content(self, moment: Moment) -> dict[str, Any]:
        """What is posted."""
        return facts(moment)

    def put(self, moment: Moment) -> None:
        if self._thread is None:
            # New ones: a thread that was left behind by the last run may still hold the old ones.
            self._waiting, self._is_ending = queue.Queue(self._waiting.maxsize), threading.Event()
            self._thread = threading.Thread(target=self._post_all, name="elastic-webhook", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(json.dumps(self.content(moment)).encode())
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                log.warning("%s does not keep up: moments are dropped", self._host)

    def on_end(self) -> None:
        """Wait a moment for what is still to be posted; the rest is dropped."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        deadline_s = time.monotonic() + self._timeout_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=self._timeout_s)
        thread.join(max(0.0, deadline_s - time.monotonic()))
        self._is_ending.set()
        if thread.is_alive():
            log.warning("%s: %d moments were not posted when the run ended", self._host, self._waiting.qsize() + 1)

    def _post_all(self) -> None:
        waiting, is_ending = self._waiting, self._is_ending
        while (content := waiting.get()) is not None and not is_ending.is_set():
            reason = self._post(content, is_ending)
            if reason:
                self.failed += 1
                log.warning("%s: a moment was not posted: %s", self._host, reason)

    def _post(self, content: bytes, is_ending: threading.Event) -> str:
        """Returns why it was not posted, empty if it was."""
        url, headers = self._request
        reason = ""
        for number in range(self._tries):
            if number and is_ending.wait(_PAUSE_S * 2 ** (number - 1)):
                break
            try:
                request = urllib.request.Request(url, content, headers, method="POST")
                _OPENER.open(request, timeout=self._timeout_s).close()
                return ""
            except urllib.error.HTTPError as error:
                error.close()
                reason = f"it answers {error.code}"
                if error.code < 500 and error.code not in (408, 429):
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = getattr(error, "reason", None)
                reason = type(cause if isinstance(cause, Exception) else error).__name__  # texts may hold the URL
        return reason


class SlackWebhook(Webhook):
    """Posts each moment as a line of text, as Slack's incoming webhooks, and what speaks like them, take it.

    Args:
        moments: default: all but rungs, which come with every checkpoint.
    """

    def __init__(self, url: str, *, moments: Collection[str] = NAMES - {RungReached.name}, **options: Any) -> None:
        super().__init__(url, moments=moments, **options)

    def content(self, moment: Moment) -> dict[str, Any]:
        return {"text": html.escape(f"[{moment.run}] {moment.sentence}", quote=False)}  # < and & have a meaning there


# --- a request that ends --------------------------------------------------------------------------------------------


def _cut_later(connection: http.client.HTTPConnection) -> None:
    """A socket's timeout begins anew with each byte; this one does not."""
    if connection.timeout is not None and connection.sock is not None:
        timer = threading.Timer(connection.timeout, _cut, [connection.sock])
        timer.daemon = True
        timer.start()


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed in time
        connected.shutdown(socket.SHUT_RDWR)


class _PlainConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        _cut_later(self)


class _SecureConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        _cut_later(self)


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_PlainConnection, request)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, request, context=ssl.create_default_context())


class _NoRedirection(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None  # the secret in a URL is for the one host


_OPENER = urllib.request.build_opener(_Plain, _Secure, _NoRedirection)
