"""Compiles the decoder ahead of time: `python -m walproxy.pipeline.decoder.warm`.

Done once after an install, or while an image is built, it spares the first task on a machine some twenty seconds. What
is compiled is cached by jit.py.
"""

import click
import numpy as np

from walproxy.pipeline.decoder.decode import decode
from walproxy.pipeline.decoder.page_images import decompress_pglz
from walproxy.pipeline.decoder.views import Piece, view_batch
from walproxy.pipeline.schemas import VIEWS

_SEGMENT_SIZE = 1 << 24


def warm() -> None:
    """Compile all that decoding and the views need, unless it is there already. Types are all that counts."""
    nothing = decode(b"", 0, 0, _SEGMENT_SIZE)
    for view in VIEWS:
        view_batch(view, nothing, Piece(0, 0))
    decompress_pglz(np.zeros(0, np.uint8), np.zeros(0, np.uint8), 0)


if __name__ == "__main__":
    warm()
    click.echo("the decoder is compiled")
