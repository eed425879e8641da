"""Pure. What is kept, and shown, of what a run's processes log."""

from dataclasses import dataclass

from elastic.errors import SettingError

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """What is kept, and shown, of what workers and driver log; see docs/logs.md.

    Attributes:
        level: least severe line that is kept in `<run_dir>/logs`: "debug", "info", "warning" or "error". (text; default
            info: what libraries say at debug would drown the rest)
        show: least severe line of a worker that the driver shows. (text; default warning: the files have the rest)
        persistent: copy the files to the persistent tier, too. (yes or no; default no: they may be large)
    """

    level: str = "info"
    show: str = "warning"
    persistent: bool = False

    def __post_init__(self) -> None:
        for name in ("level", "show"):
            if getattr(self, name) not in LEVELS:
                raise SettingError(f"Logs.{name}={getattr(self, name)!r} must be one of {', '.join(LEVELS)}")
