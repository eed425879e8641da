"""Effect. The token of a run: who knows it may drive the run.

The driver draws one for each of its lives and writes it into the run directory, into a file that only the same user may
read. The actors that the driver starts get it; who finds the run by its name has to read the file.
"""

import contextlib
import hmac
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from elastic.errors import ElasticError

VARIABLE = "ELASTIC_RUN_TOKEN"
_FILE = "token"
_BYTES = 32
_TOKEN = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Attributes: secret: never shown. host, path: where its file is."""

    secret: str = field(repr=False)
    host: str
    path: str

    def is_known_by(self, secret: object) -> bool:
        """In the same time, whatever was given."""
        return isinstance(secret, str) and hmac.compare_digest(secret.encode(), self.secret.encode())


def draw(run_dir: Path) -> Token:
    """A new token, in a new file."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir.resolve() / _FILE  # a link in the place of the file itself is not followed
    path.unlink(missing_ok=True)  # of an earlier life, which it can not serve any more
    token = Token(secret=secrets.token_hex(_BYTES), host=socket.gethostname(), path=str(path))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token.secret)
    return token


def forget(token: Token) -> None:
    """Take its file away, unless a later life has put its own there."""
    path = Path(token.path)
    with contextlib.suppress(OSError):
        if path.read_text() == token.secret:
            path.unlink()


def find(run: str, host: str, path: str) -> str:
    """The secret, from ELASTIC_RUN_TOKEN or the file.

    Whoever has taken the name of a run could say any path: what does not look like a token is not handed out.

    Raises:
        ElasticError: neither is there.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return given
    try:
        secret = Path(path).read_text(errors="replace")
    except OSError as error:
        raise ElasticError(
            f"the run {run} heeds who knows its token, which is in {path} on {host} and cannot be read here "
            f"({error.strerror}): ask there, as the user who started the run, or set {VARIABLE}"
        ) from error
    if Path(path).name != _FILE or not _TOKEN.fullmatch(secret):
        raise ElasticError(f"{path}, which the run {run} names on {host}, holds no token: set {VARIABLE}")
    return secret
