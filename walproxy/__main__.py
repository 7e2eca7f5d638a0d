"""The program `walproxy`, also as `python -m walproxy`."""

import sys

from safekeeper.errors import EXIT_UNEXPECTED
from safekeeper.hangup import hold_hangup
from safekeeper.logs import print_error
from walproxy.failure_codes import failure_code


def main() -> None:
    """Run the command line, and exit."""
    arguments = sys.argv[1:]
    hold_hangup(arguments)
    try:
        from walproxy.cli import main as run  # Not before: it imports for 0.2 s.
    except Exception as error:  # A module may fail in any way while it is imported.
        print_error("walproxy", f"the installation is damaged: {error}: install walproxy again")
        sys.exit(failure_code(arguments) or EXIT_UNEXPECTED)
    run()


if __name__ == "__main__":
    main()
