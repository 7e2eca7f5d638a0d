"""The program `safekeeper`, also as `python -m safekeeper`."""

import sys

from safekeeper.base.hangup import hold_hangup


def main() -> None:
    """Run the command line and exit."""
    hold_hangup(sys.argv[1:])
    from safekeeper.cli import main as run  # Imported here because the import takes 0.2 s.

    run()


if __name__ == "__main__":
    main()
