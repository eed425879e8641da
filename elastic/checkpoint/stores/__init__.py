"""Effect. Stores for the persistent tier, by URL."""

from pathlib import Path

from elastic.checkpoint.parallel import in_parallel
from elastic.checkpoint.store import Store, StoreError
from elastic.checkpoint.stores.bounded import BoundedStore
from elastic.errors import SettingError

DEADLINE_S = 120.0
_LOOK_S = 20.0


def open_store(url: str, *, deadline_s: float = DEADLINE_S, knob: str = "Checkpoint.persistent") -> Store:
    """Open the store at gs://bucket/prefix, an absolute path, file:///path, or a URL that fsspec knows.

    Args:
        deadline_s: how long one request may take, with its retries. knob: names the URL in errors.

    Raises:
        SettingError: the URL cannot be used; says what to write or to install.
        StoreError: no credentials, or a mount that hangs, or that cannot be looked at.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme == "file":
        path = Path(rest if separator else url)
        if not path.is_absolute():
            raise SettingError(
                f"{knob}={url!r} must be an absolute path, the same on every node, or a URL such as gs://bucket/prefix"
            )
        if _is_file(path, min(deadline_s, _LOOK_S)):
            raise SettingError(f"{knob}={url!r} is a file; name a directory")
        from elastic.checkpoint.stores.directory import DirectoryStore

        return BoundedStore(DirectoryStore(path, deadline_s=deadline_s), deadline_s)
    if scheme == "gs":
        from elastic.checkpoint.stores.gcs import GcsStore

        return GcsStore(url, deadline_s=deadline_s)
    try:
        from elastic.checkpoint.stores.url import UrlStore

        return BoundedStore(UrlStore(url), deadline_s)
    except (ImportError, ValueError) as error:
        raise SettingError(
            f"{knob}: the scheme {scheme!r} cannot be opened ({type(error).__name__}); install "
            "ray-elastic[url] and fsspec's implementation of it (s3fs for s3://), or use gs:// or a mounted path"
        ) from None


def _is_file(path: Path, within_s: float) -> bool:
    """A mount may hang with the first look at it: then whoever opens it is told, and does not hang with it.

    Raises:
        StoreError: it does; or it says why it cannot be looked at, as that it may not, or that its disk is broken.
    """

    def look(path: Path) -> bool:
        try:
            return path.exists() and not path.is_dir()
        except OSError as error:
            raise StoreError(f"{path} cannot be looked at: {error.strerror}") from error

    return in_parallel(look, [path], threads=1, stall_s=within_s, what="cannot look at a directory")[0]
