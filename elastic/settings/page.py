"""Pure. The live page of a run."""

from dataclasses import dataclass

from elastic.errors import SettingError

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = range(0, 65536)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The live page of a run, which shows and changes nothing; see docs/report.md.

    Attributes:
        port: where it listens; 0: at a free port; none: no page. (port; default 0: it costs nothing until somebody
            looks)
        host: the address it listens at; beyond this machine, it is only shown to who has the token in its URL.
            (address; default 127.0.0.1: what a run does is for those who are on its machine)
    """

    port: int | None = 0
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if self.port is not None and self.port not in _PORTS:
            raise SettingError(f"Page.port={self.port!r} must be 0 to 65535, or none for no page")
        if not self.host:
            raise SettingError("Page.host='' must be an address: 127.0.0.1 for this machine, 0.0.0.0 for all")

    @property
    def is_loopback(self) -> bool:
        """Only this machine can reach it."""
        return self.host in _LOOPBACK
