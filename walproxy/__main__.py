"""The program `walproxy`, also as `python -m walproxy`."""

import sys
from typing import NoReturn

from safekeeper.base.hangup import hold_hangup


def main() -> None:
    """Run the command line, and exit."""
    hold_hangup(sys.argv[1:])
    try:
        from walproxy.cli import main as run  # Not before: it imports for 0.2 s.
    except Exception as error:  # A module may fail in any way while it is imported.
        _give_up(error)
    run()


def _give_up(error: Exception) -> NoReturn:
    """Exit: the command line cannot be imported. What is imported here needs the standard library only."""
    from safekeeper.base.errors import EXIT_UNEXPECTED
    from safekeeper.base.logs import print_error
    from walproxy.failure_codes import failure_code

    print_error("walproxy", f"the installation is damaged: {error}: install walproxy again")
    sys.exit(failure_code(sys.argv[1:]) or EXIT_UNEXPECTED)


if __name__ == "__main__":
    main()
