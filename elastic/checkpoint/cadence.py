"""Pure. When the persistent tier is due."""

from elastic.settings import Interval

AUTO_S = 60.0  # a measured interval is never shorter


def is_upload_due(interval: Interval, *, elapsed_s: float, steps: int, took_s: float) -> bool:
    """Whether the next upload should begin.

    Uploads run beside the training, on nodes that have other work too: where the interval is measured, they take at
    most half of the time.

    Args:
        elapsed_s, steps: since the last one began. took_s: how long that one took.
    """
    if interval.is_auto:
        return elapsed_s >= max(AUTO_S, 2 * took_s)
    is_over = interval.seconds is not None and elapsed_s >= interval.seconds
    return is_over or (interval.steps is not None and steps >= interval.steps)
