"""Effect. Plots are drawn for light and dark pages, and equal results give equal files."""

from pathlib import Path

import pytest

from benchmarks import plots, render

pytest.importorskip("matplotlib", reason="matplotlib is in the extra `bench`")


def test_a_plot_is_drawn_and_the_same_each_time(tmp_path: Path) -> None:
    found = render.load(render.RESULTS.glob("*.json"))
    names = render.plots(found)[-1:]
    first = plots.draw(found, names, tmp_path / "first")
    second = plots.draw(found, names, tmp_path / "second")
    assert len(first) == 4 and names
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
