"""The demo as a picture: run it in a pseudo-terminal, and draw what it printed as an animated SVG.

    python -m walproxy.lab.demo.recording

writes docs/demo.svg, and build/demo.cast with everything that was printed and when (asciicast v2). `--cast FILE` draws
such a file again without another run. The picture plays once, in DURATION_S, and ends with its last frame; that frame
alone is shown where there is no animation, or the reader prefers none. It has no script, and refers to nothing outside
of itself.

The terminal and the drawing are those of termtosvg-ng, of the extra `dev`.
"""

import os
import re
import sys
from importlib import resources
from pathlib import Path
from typing import Final

import click
from termtosvg.anim import CharacterCell, render_animation
from termtosvg.asciicast import read_records
from termtosvg.term import TimedFrame, record, timed_frames

from safekeeper.base.command import run_command
from safekeeper.base.errors import WalproxyError

DURATION_S: Final = 20.0
DEMO: Final = ("demo", "--quick")
PICTURE: Final = Path("docs/demo.svg")
_CAST: Final = Path("build/demo.cast")
_COLUMNS: Final = 102
_ROWS: Final = 32
# The demo draws four times a second, and is played about twice as fast.
_FRAME_MS_MIN: Final = 330
_LAST_FRAME_MS: Final = 1000
_HELD: Final = re.compile(r"All \d+ steps held")
_OFFSET: Final = re.compile(r"translateY\((-?\d+)px\)")
_END_OF_STYLE: Final = "]]></style>"
# The template gives text this colour by itself.
_DEFAULT_COLOUR: Final = ' class="foreground"'


def record_demo(cast: Path) -> None:
    """Run the demo in a pseudo-terminal and write what it prints into `cast`.

    Raises:
        WalproxyError: not every step held.
    """
    command = [sys.executable, "-m", "walproxy", *DEMO]
    # Colours and the width must not depend on where this is run.
    os.environ.update(TERM="xterm-256color", LANG="C.UTF-8")
    never_read, never_written = os.pipe()
    try:
        records = list(record(command, _COLUMNS, _ROWS, never_read, sys.stdout.fileno()))
    finally:
        os.close(never_read)
        os.close(never_written)
    cast.parent.mkdir(parents=True, exist_ok=True)
    cast.write_text("".join(f"{each.to_json_line()}\n" for each in records))
    if not _HELD.search("".join(each.event_data for each in records[1:])):
        raise WalproxyError(f"the demo did not hold: what it printed is in {cast}")


def draw(cast: Path, picture: Path) -> None:
    """Draw a recording so that it takes DURATION_S."""
    header, *events = read_records(str(cast))
    scale = DURATION_S / events[-1].time
    scaled = [event._replace(time=event.time * scale) for event in events]
    template = resources.files("walproxy.lab.demo").joinpath("recording.svg.template").read_bytes()
    geometry, frames = timed_frames(iter([header, *scaled]), _FRAME_MS_MIN, None, _LAST_FRAME_MS)
    render_animation(map(_without_blank_ends, frames), geometry, str(picture), template)
    drawn = picture.read_text().replace(_DEFAULT_COLOUR, "")
    picture.write_text(_resting_on_its_last_frame(drawn))


def _without_blank_ends(frame: TimedFrame) -> TimedFrame:
    """Return the frame without the blanks at the end of each line, which are a third of the file."""
    for row, cells in frame.buffer.items():
        end = max((column for column, cell in cells.items() if not _is_blank(cell)), default=-1)
        frame.buffer[row] = {column: cell for column, cell in cells.items() if column <= end}
    return frame


def _is_blank(cell: CharacterCell) -> bool:
    return cell.text == " " and cell.background_color == "background" and not cell.underscore


def _resting_on_its_last_frame(picture: str) -> str:
    """Return the picture with a place for its strip of frames where nothing moves it: the last frame."""
    last = max((int(offset) for offset in _OFFSET.findall(picture)), key=abs)
    rest = f"#screen_view {{transform: translateY({last}px)}}\n"
    still = "@media (prefers-reduced-motion: reduce) {#screen_view {animation: none}}\n"
    before, end, after = picture.rpartition(_END_OF_STYLE)
    return f"{before}{rest}{still}{end}{after}"


@click.command()
@click.option("--cast", type=click.Path(path_type=Path, exists=True), help="Draw this recording; run nothing.")
@click.argument("picture", type=click.Path(path_type=Path), default=PICTURE)
def recording(cast: Path | None, picture: Path) -> None:
    """Record `walproxy demo --quick` as the animated PICTURE."""
    if cast is None:
        cast = _CAST
        record_demo(cast)
    draw(cast, picture)
    click.echo(f"{picture}: {picture.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    run_command(recording, "recording")
