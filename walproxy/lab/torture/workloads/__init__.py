"""The clients' transactions, and what must be true of them afterwards: one module for each workload.

A workload makes attempts: transactions that the clients try (`clients.py`). An attempt describes itself in one line,
which goes into the history; the checker reads these lines, so that a history that was kept can be checked once more. A
check is a pure function of what the tables hold in the end and of the history.
"""

from walproxy.lab.torture.workloads.append import AppendWorkload
from walproxy.lab.torture.workloads.bank import Bank
from walproxy.lab.torture.workloads.interface import Attempt, Workload
from walproxy.lab.torture.workloads.lists import Lists
from walproxy.lab.torture.workloads.unique import Unique

__all__ = ["WORKLOADS", "Attempt", "Workload"]

WORKLOADS: tuple[Workload, ...] = (Bank(), AppendWorkload(), Unique(), Lists())
