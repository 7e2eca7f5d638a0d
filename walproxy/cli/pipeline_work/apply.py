"""`walproxy pipeline apply`: the job, or the comparison, until a signal ends it."""

from walproxy.cli.pipeline_work.stop_signals import stopped_by_signals
from walproxy.pipeline.cdc.apply.job import ApplyOptions, run_apply
from walproxy.pipeline.cdc.apply.verify import run_verify
from walproxy.pipeline.lake.location import LakeLocation

__all__ = ["ApplyOptions", "LakeLocation", "apply_until_signal", "verify_once"]


def apply_until_signal(options: ApplyOptions, *, once: bool) -> None:
    """Follow the source, up to now if `once`, else until SIGTERM or SIGINT."""
    with stopped_by_signals() as stop:
        run_apply(options, once=once, stop=stop)


def verify_once(options: ApplyOptions, *, repair: bool) -> None:
    """Follow up to now and compare all rows with the source; copy tables again that differ if `repair`."""
    with stopped_by_signals() as stop:
        run_verify(options, repair=repair, stop=stop)
