"""What an agent does, in words: for its report and its log."""

import logging

from safekeeper.base.logs import CHANGES_A_MINUTE, ProblemLog, RateLimits

_log = logging.getLogger(__name__)


class Activity:
    """What one agent does.

    A reason that comes and goes each second is a few lines a minute, as is a step that fails again and again.

    Attributes:
        doing: what it does beyond watching; "" for nothing.
        problem: why it cannot do what it should; "" for none.
        order_done, order_result: the id of the last order that it has executed or refused, and how that ended.
    """

    def __init__(self) -> None:
        self.doing = ""
        self.problem = ""
        self.order_done = ""
        self.order_result = ""
        self._waits_for = ProblemLog(_log)
        self._failures = ProblemLog(_log)
        self._lines = RateLimits(CHANGES_A_MINUTE, 60.0)

    @property
    def shown(self) -> str:
        """What it does, or what it waits for."""
        return self.doing or self._waits_for.text

    def wait_for(self, reason: str) -> None:
        """Log what the agent waits for; "" for nothing."""
        if reason:
            self._waits_for.note(reason, "waiting: %s", reason, level=logging.INFO)
        else:
            self._waits_for.over()

    def failed(self, problem: str) -> None:
        """Log a problem, and show it until a step succeeds."""
        self._failures.note(problem, "%s", problem, level=logging.ERROR)
        self.problem = problem

    def succeeded(self) -> None:
        """End the problem of earlier steps."""
        self._failures.over()
        self.problem = ""

    def log(self, line: str, *, level: int = logging.INFO) -> None:
        """Log a line that each attempt repeats."""
        addition = self._lines.admit(line)
        if addition is not None:
            _log.log(level, "%s%s", line, addition)
