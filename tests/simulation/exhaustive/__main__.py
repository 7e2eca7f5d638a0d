"""Every interleaving of a small world, of the real state machines: `python -m tests.simulation.exhaustive --terms 2`.

Theory of operation. A breadth-first search (search.py). The steps, and the invariants, which are checked in
every state, are in steps.py. What is small about this world is in world.py; its size is set by
the options. The path to the first violation is a shortest one, and is printed.
"""

import argparse
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from tests.simulation.bugs.planted import BUGS, planted, swapped
from tests.simulation.exhaustive.search import Found, Search
from tests.simulation.exhaustive.steps import Bounds
from tests.simulation.exhaustive.world import SWAPS

PRINT_EVERY_S = 2.0


def search(
    bounds: Bounds, bug: str | None = None, report: Callable[[int, int], None] = lambda depth, states: None
) -> Found:
    """Look at everything within the bounds, with a planted bug if one is named."""
    with ExitStack() as stack:
        stack.enter_context(swapped(SWAPS))
        if bug is not None:
            stack.enter_context(planted(BUGS[bug]))
        return Search(bounds).run(report)


def main(arguments: list[str] | None = None) -> int:
    """Search by the options; return the exit code: 1 if something does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.exhaustive", description=__doc__)
    parser.add_argument("--terms", type=int, default=2, help="how many runs campaign (default: %(default)s)")
    parser.add_argument("--records", type=int, default=2, help="how long the log may get (default: %(default)s)")
    parser.add_argument("--crashes", type=int, default=0, help="how often a safekeeper may die (default: %(default)s)")
    parser.add_argument("--figure-8", action="store_true", help="begin with the logs that two earlier terms have left")
    parser.add_argument("--change", action="store_true", help="one member of one, which is replaced by another one")
    parser.add_argument(
        "--prompt",
        nargs="?",
        choices=("answers", "flushes", "both"),
        const="both",
        help="what comes before anything else happens; alone it means both",
    )
    parser.add_argument("--bug", choices=BUGS, help="plant a bug, which must be found: exit code 1 if it was")
    options = parser.parse_args(arguments)
    bounds = Bounds(
        options.terms,
        options.records,
        options.crashes,
        options.figure_8,
        prompt_answers=options.prompt in ("answers", "both"),
        prompt_flushes=options.prompt in ("flushes", "both"),
        change=options.change,
    )
    printed_at = time.monotonic()

    def report(depth: int, states: int) -> None:
        nonlocal printed_at
        if time.monotonic() > printed_at + PRINT_EVERY_S:
            printed_at = time.monotonic()
            print(f"depth {depth}: {states} distinct states so far", flush=True)

    found = search(bounds, options.bug, report)
    for number, step in enumerate(found.path, 1):
        print(f"{number:3} {step}")
    verdict = "all hold" if found.violation is None else f"{found.violation.invariant} does not hold"
    memory_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{found.states} distinct states, {found.transitions} transitions, depth {found.depth}, {found.seconds:.1f} s, "
        f"{time.process_time():.1f} s of CPU time, {memory_kib / 1024:.0f} MiB, "
        f"a state was omitted with a probability of at most {found.omission_probability:.1g}: {verdict}"
    )
    return 0 if found.violation is None else 1


if __name__ == "__main__":
    sys.exit(main())
