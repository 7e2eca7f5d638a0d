"""The limbo: the transactions whose end is in the WAL and whose positions the proxy has not reported to PostgreSQL yet.

limbo             composition: decodes the uncommitted WAL when that is needed, samples sessions, executes the policy
transactions      the queue: reads the records that end or prepare transactions from the uncommitted WAL; since when
                  each position waits
facts             what it is given: the proxy's positions, and the sessions that wait
commit_policy     what happens to a commit that waits too long
sessions          the sessions that wait, from pg_stat_activity; ends their waits; the fence
literals          masks the literals of a statement
page              the content of GET /limbo: the state of each entry, derived from positions
table             formats it for a terminal

The path of a commit pays for one append to a list per batch of WAL. All else happens when a client asks, or once WAL
has waited longer than `slow_commit`. Positions decide every state; no entry has a counter of its own.
"""
