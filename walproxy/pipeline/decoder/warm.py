"""Compiles the decoder ahead of time: `python -m walproxy.pipeline.decoder.warm`.

Done once after an install, or while an image is built, it spares each first task some ten seconds. What is compiled is
kept where jit.py says.
"""

import click

from walproxy.pipeline.decoder.decode import decode


def warm() -> None:
    """Compile all that decoding needs, unless it is there already."""
    decode(bytes(0), 0, 0, 1 << 24)


if __name__ == "__main__":
    warm()
    click.echo("the decoder is compiled")
