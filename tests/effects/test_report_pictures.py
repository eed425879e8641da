"""Pictures of the report and of the live page, for people who look at them; none is of a page that is not drawn."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from elastic.report.window import window
from elastic.settings import Page
from tests.effects.browser import Browser, Tab, browser, needs_browser
from tests.effects.test_report_page import PHONE, WIDE, a_run_of_two, opened, reported
from tests.pure.report_lines import a_night, written

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SIGHTS = [
    pytest.param(size, is_dark, id=f"{size[0]} px, {'dark' if is_dark else 'light'}")
    for size in (WIDE, PHONE)
    for is_dark in (False, True)
]


@needs_browser
@pytest.mark.parametrize(("size", "is_dark"), SIGHTS)
def test_pictures_for_people_are_of_a_page_that_is_drawn(tmp_path: Path, size: tuple[int, int], is_dark: bool) -> None:
    """Of the report, of an open story, and of the live page; they are in pytest's folder of this test."""
    with browser(tmp_path / "chromium") as chromium:
        folder = written(a_night().lines, tmp_path / "run")
        tab = opened(chromium, folder, reported(folder), size, is_dark)
        assert_drawn(chromium, tab, tmp_path / "report.png", size, is_dark)
        tab.evaluate("document.querySelector('#stories button').click()")
        tab.wait("document.querySelector('.story') !== null")
        assert_drawn(chromium, tab, tmp_path / "story.png", size, is_dark)
        folder = written(a_run_of_two().lines, tmp_path / "live")
        with window(Page(), folder, folder / "journal.jsonl", "night") as url:
            tab = chromium.tab()
            tab.look(*size, is_dark=is_dark)
            tab.go(url)
            tab.wait("document.querySelector('#phase')?.textContent === 'running'")
            assert_drawn(chromium, tab, tmp_path / "live.png", size, is_dark)


def assert_drawn(chromium: Browser, tab: Tab, path: Path, size: tuple[int, int], is_dark: bool) -> None:
    """The picture is of the whole page, as wide as the screen, on its ground, and each part of it shows something."""
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")  # draws what nobody has scrolled to
    tab.shoot(path)
    seen = json.loads(chromium.tab().evaluate(f"({LOOKED_AT})('{b64encode(path.read_bytes()).decode()}')"))
    assert seen["width"] == size[0] and seen["height"] >= tab.evaluate("document.documentElement.scrollHeight")
    assert (sum(seen["ground"]) < 3 * 128) == is_dark
    assert min(seen["colours"]) > 2 and max(seen["colours"]) > 20, "nothing is drawn on some of it"


# Of a picture: its size, the colour of its first dot, and how many colours there are in each 400 rows of it.
LOOKED_AT = """
async (data) => {
  const image = new Image();
  image.src = "data:image/png;base64," + data;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height), onto = canvas.getContext("2d");
  onto.drawImage(image, 0, 0);
  const colours = [];
  for (let top = 0; top + 400 <= image.height; top += 400) {
    const dots = new Uint32Array(onto.getImageData(0, top, image.width, 400).data.buffer);
    colours.push(new Set(dots).size);
  }
  const ground = [...onto.getImageData(0, 0, 1, 1).data].slice(0, 3);
  return JSON.stringify({ width: image.width, height: image.height, colours, ground });
}
"""
