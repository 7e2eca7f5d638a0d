"""`walproxy pipeline apply`: the job, or the comparison, until a signal ends it."""

import signal
import threading
from types import FrameType

from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.tables.table_folder import local_folder

__all__ = ["ApplyOptions", "apply_until_signal", "local_folder", "verify_once"]


def apply_until_signal(options: ApplyOptions, *, once: bool) -> None:
    """Follow the source, up to now if `once`, else until SIGTERM or SIGINT."""
    run_apply(options, once=once, stop=_stop_at_signals())


def verify_once(options: ApplyOptions, *, repair: bool) -> None:
    """Follow up to now and compare all rows with the source; copy tables again that differ if `repair`."""
    run_verify(options, repair=repair, stop=_stop_at_signals())


def _stop_at_signals() -> threading.Event:
    """Return an event that the first SIGTERM or SIGINT sets. A second Ctrl-C does not wait for the step."""
    stop = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop
