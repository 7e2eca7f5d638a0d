"""A check of histories for isolation anomalies: transactions append to lists and read them (ADR 0058).

A list shows the order of its appends to everyone who reads it. So the order of the transactions follows from what they
have read, as in Elle (Kingsbury and Alvaro, VLDB 2020; https://github.com/jepsen-io/elle), and a history that no serial
order explains has a cycle. All of it is pure.

transactions    one transaction, as its client saw it, and which of them count
versions        the order of the appends to each list, and what a single list already contradicts
dependencies    the graph: which transaction must precede which
cycles          strongly connected components, and a short cycle in one
check           the anomalies of a history
workload        the transactions that clients try
"""
