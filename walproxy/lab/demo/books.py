"""The main check: the bank's books against the replies to clients."""

from walproxy.lab.demo.bank import ACCOUNTS, OPENING_BALANCE, audit
from walproxy.lab.demo.stage import DemoStage


def compare_books(stage: DemoStage) -> str:
    """Return what was found, as one sentence, when every acknowledged transfer is there and every sum is right.

    Raises:
        StepFailed: something is lost, made up, or wrong.
    """
    acknowledged = {each.transaction for each in stage.history.acknowledged}
    found = audit(stage.cluster.postgres, acknowledged, {each.transaction for each in stage.history.in_doubt})
    stage.require(
        not found.missing, f"{len(found.missing)} acknowledged transfers are lost, the first is {found.missing[:1]}"
    )
    stage.require(not found.strangers, f"{len(found.strangers)} transfers are there that no client has committed")
    stage.require(not found.wrong_accounts, f"{found.wrong_accounts} accounts do not follow from the transfers")
    total = ACCOUNTS * OPENING_BALANCE
    stage.require(found.total_balance == total, f"the total balance is {found.total_balance}, not {total}")
    return (
        f"all {len(acknowledged):,} acknowledged transfers are there, and {found.in_doubt_found} of "
        f"{len(stage.history.in_doubt)} in doubt; total balance {total:,}, unchanged"
    )
