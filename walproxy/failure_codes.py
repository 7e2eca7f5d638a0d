"""The exit codes of commands whose caller gives codes a meaning of its own: PostgreSQL, and monitoring systems.

Only the standard library is imported, so that a program that cannot be imported ends with these codes, too.
"""

from collections.abc import Sequence

from walproxy.recovery.server_mode import failure_code as code_for_postgresql


def failure_code(arguments: Sequence[str]) -> int | None:
    """Return the exit code of every failure of this command line, None if that depends on what fails."""
    if arguments[:1] == ["wal-fetch"]:
        return code_for_postgresql(arguments[1:])
    if arguments[:1] != ["check"]:
        return None
    from walproxy.proxy.health_check import CheckLevel  # Not for a restore_command, which is started for each file.

    return CheckLevel.UNKNOWN.value
