"""The recording of the demo that the README shows: it is of this demo, complete, and a picture only."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from walproxy.lab.demo.recording import DEMO, DURATION_S, PICTURE, draw
from walproxy.lab.demo.steps import QUICK_STEPS

ROOT = Path(__file__).parents[4]
RECORDING = ROOT / PICTURE
KIB_MAX = 150
SVG = "{http://www.w3.org/2000/svg}"
OUTSIDE = re.compile(r"(?:https?:)?//(?!www\.w3\.org/|github\.com/nbedos/termtosvg)|@import|url\((?!#)")


def style_of(picture: Path) -> str:
    return "".join(style.text or "" for style in ElementTree.parse(picture).getroot().iter(f"{SVG}style"))


def lines_of(picture: Path) -> set[str]:
    """Return every line that a frame shows."""
    groups = ElementTree.parse(picture).getroot().iter(f"{SVG}g")
    return {"".join(text.text or "" for text in group.iter(f"{SVG}text")) for group in groups}


def test_the_recording_shows_each_step_of_the_demo_by_its_present_title() -> None:
    assert DEMO == ("demo", "--quick")
    shown = {line.rstrip() for line in lines_of(RECORDING)}
    assert not [step.title for number, step in enumerate(QUICK_STEPS, 1) if f"{number:2}. {step.title}" not in shown]
    assert any(re.fullmatch(rf"All {len(QUICK_STEPS)} steps held, in \d+ s\.", line) for line in shown)


@pytest.mark.parametrize("picture", ["docs/demo.svg", "docs/architecture.svg"])
def test_a_picture_has_no_script_and_refers_to_nothing_outside(picture: str) -> None:
    path = ROOT / picture
    for element in ElementTree.parse(path).getroot().iter():
        assert element.tag not in (f"{SVG}script", f"{SVG}foreignObject", f"{SVG}image")
        assert not [name for name in element.attrib if name.lower().startswith("on")]
    assert OUTSIDE.search(path.read_text()) is None
    assert path.stat().st_size < KIB_MAX * 1024


def test_the_recording_plays_once_and_stays_on_its_last_frame() -> None:
    style = style_of(RECORDING)
    frames = [int(offset) for offset in re.findall(r"%\{transform:translateY\((-?\d+)px\)\}", style)]
    assert len(frames) > 30
    assert f"#screen_view {{transform: translateY({min(frames)}px)}}" in style
    assert frames[-1] == min(frames)
    assert "animation-iteration-count: 1" in style
    assert "@media (prefers-reduced-motion: reduce) {#screen_view {animation: none}}" in style
    duration = re.search(r"animation-duration: (\d+)ms", style)
    assert duration is not None
    assert DURATION_S <= int(duration[1]) / 1000 <= DURATION_S + 2


def test_a_recording_is_drawn_at_the_speed_that_fills_the_duration(tmp_path: Path) -> None:
    cast = tmp_path / "demo.cast"
    printed = [(0.0, "one\r\n"), (20.0, "two\r\n"), (40.0, "three")]
    lines = [{"version": 2, "width": 40, "height": 4}, *([at, "o", text] for at, text in printed)]
    cast.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    picture = tmp_path / "demo.svg"
    draw(cast, picture)
    assert {"one", "two", "three"} <= {line.rstrip() for line in lines_of(picture)}  # the cursor is a blank
    keyframes = re.findall(r"(\d+\.\d+)%\{transform", style_of(picture))
    last_frame_s = 1.0
    assert float(keyframes[1]) == pytest.approx(100 * 10 / (DURATION_S + last_frame_s), abs=0.1)
