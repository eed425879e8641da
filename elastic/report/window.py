"""Effect. The driver's end of the live page: a socket that listens, and a server once somebody has come to it.

Until then the page costs a thread that sleeps. The server is a child process, and goes with its parent.
"""

import contextlib
import fcntl
import logging
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from elastic.errors import SettingError
from elastic.report.server import TOKEN_VARIABLE
from elastic.settings import Page

log = logging.getLogger("elastic")

URL_FILE = "page.url"
_BACKLOG = 16
_AGAIN_S = 5.0  # between the end of a server and the start of the next one
_END_S = 5.0


@contextlib.contextmanager
def window(settings: Page, run_dir: Path, journal: Path, run: str) -> Iterator[str]:
    """Have the page served for as long as the block lasts; yields where, for people, empty where there is none.

    The whole URL is in `<run_dir>/page.url`, which only the same user may read: it may hold a token, and no log does.

    Raises:
        SettingError: the address cannot be listened at.
    """
    if settings.port is None:
        yield ""
        return
    listening = _listening(settings.host, settings.port)
    token = "" if settings.is_loopback else secrets.token_urlsafe(24)
    url = _url(settings.host, listening.getsockname()[1], token)
    path = run_dir / URL_FILE
    held = _write_for_owner(path, url)
    over, wake = os.pipe()
    keeper = threading.Thread(
        target=_keep, args=(listening, over, journal, run, token), name="elastic-page-window", daemon=True
    )
    keeper.start()
    try:
        yield url if not token else f"{url.partition('?')[0]} (the URL with its token is in {path})"
    finally:
        os.close(wake)
        keeper.join(2 * _END_S)
        listening.close()
        os.close(over)
        with contextlib.suppress(OSError):
            if path.read_text().strip() == url:
                path.unlink()
        os.close(held)


def live_url(run_dir: Path) -> str:
    """Where the page of a run is served now; empty: nowhere, or to another user.

    A driver that was killed leaves the file, but not the lock (to try the port would start the server). Where a file
    system has no locks, the file counts.
    """
    with contextlib.suppress(OSError), (run_dir / URL_FILE).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return file.read().strip()
    return ""


def _keep(listening: socket.socket, over: int, journal: Path, run: str, token: str) -> None:
    """Start a server when somebody comes, another one where it dies, and end it when `over` is closed elsewhere."""
    while True:
        if _is_over(over, listening):
            return
        server = _start(listening, journal, run, token)
        try:
            while server.poll() is None:
                if _is_over(over, within_s=1.0):
                    return
            log.warning("the server of the run's page has ended with %s: it comes back", server.returncode)
            if _is_over(over, within_s=_AGAIN_S):
                return
        finally:
            _end(server)


def _is_over(over: int, *others: socket.socket, within_s: float | None = None) -> bool:
    """Wait for it, or for somebody at the other sockets."""
    with selectors.DefaultSelector() as selector:  # not select(2): it refuses descriptors from 1024 on
        selector.register(over, selectors.EVENT_READ)
        for one in others:
            selector.register(one, selectors.EVENT_READ)
        return over in [key.fd for key, _ in selector.select(within_s)]


def _start(listening: socket.socket, journal: Path, run: str, token: str) -> subprocess.Popen[bytes]:
    number = str(listening.fileno())
    where = ["--socket", number, "--journal", str(journal.absolute()), "--run", run]
    return subprocess.Popen(
        [sys.executable, "-m", "elastic.report.server", *where],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the driver, which ends it
        pass_fds=(listening.fileno(),),
        env=os.environ | {TOKEN_VARIABLE: token, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
    )


def _end(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(_END_S)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
        return listening
    except OSError as error:
        raise SettingError(
            f"Page.host={host!r}, Page.port={port}: nothing can listen there ({error.strerror}); port=0 takes a free "
            "one, port=None serves no page"
        ) from error


def _url(host: str, port: int, token: str) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    place = f"[{shown}]" if ":" in shown else shown
    return f"http://{place}:{port}/" + (f"?token={quote(token)}" if token else "")


def _write_for_owner(path: Path, text: str) -> int:
    """The descriptor under whose lock the file is."""
    path.unlink(missing_ok=True)
    held = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):  # not every file system has locks
        fcntl.flock(held, fcntl.LOCK_EX)
    os.write(held, f"{text}\n".encode())
    return held
