"""The clients' transactions, and what must be true of them afterwards: one module for each workload.

A workload makes attempts: transactions that the clients try (`clients.py`). A check is a pure function of what the
tables hold in the end, of the attempts, and of what each came to.
"""

from walproxy.lab.torture.workloads.bank import Bank
from walproxy.lab.torture.workloads.interface import Attempt, Try, Workload
from walproxy.lab.torture.workloads.lists import Lists
from walproxy.lab.torture.workloads.unique import Unique

__all__ = ["WORKLOADS", "Attempt", "Try", "Workload"]

WORKLOADS: tuple[Workload, ...] = (Bank(), Unique(), Lists())
