"""Pure. One line of JSON with a sum over all in it: how manifests and all small records are written. No pickle."""

import json
from collections.abc import Mapping
from typing import Any

import google_crc32c

from elastic.errors import CorruptError


class OtherVersionError(CorruptError):
    """It is what was written, by a release whose format is another."""


def sealed(body: Mapping[str, Any], version: int) -> bytes:
    """A body as one line, with the version of its format."""
    text = json.dumps({"version": version, **body}, separators=(",", ":"), sort_keys=True)
    return json.dumps({"crc32c": google_crc32c.value(text.encode()), "body": text}).encode() + b"\n"


def opened(data: bytes, version: int, what: str) -> dict[str, Any]:
    """Read `sealed`'s line; `what` names it in errors.

    Raises:
        CorruptError: it is not what was written. OtherVersionError: it is of another version.
    """
    try:
        outer = json.loads(bytes(data))
        text = outer["body"]
        if google_crc32c.value(text.encode()) != outer["crc32c"]:
            raise CorruptError(f"{what} does not match its sum")
        body = dict(json.loads(text))
        found = body.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{what} cannot be read: {type(error).__name__}: {error}") from error
    if found != version:
        raise OtherVersionError(f"{what} is not of version {version}: read it with the release that wrote it")
    return body
