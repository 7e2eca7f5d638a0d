"""walproxy: makes the commits of a stock PostgreSQL durable on a quorum of safekeepers.

Packages, from the top; each imports only from those below it (tests/unit/test_layers.py holds this):

cli           the command line; failure_codes: its exit codes, also if it cannot be imported
lab           clusters for tests, benchmarks, torture and demo; not used in production
pipeline      WAL and row changes as tables, with Spark
recovery      restore, wal-fetch, what an archive holds
proxy         the running proxy, and the commands that act on its cluster
wal_sources   where WAL is: an archive, running safekeepers, the folder of a stopped one
proposer      the proxy's half of the consensus, pure
postgres      PostgreSQL as a client sees it: replication, SQL, conninfo, installed servers
html_page     the frame of all HTML reports
"""
