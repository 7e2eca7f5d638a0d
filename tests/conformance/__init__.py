"""PostgreSQL's own tests with safekeepers between primary and standby: `python -m tests.conformance`.

    sources.py        fetches the source of a major version, compiles and installs it
    outcomes.py       reads what the suites print, and compares it with expected_failures.txt
    regress.py        the core regression suite against a gated primary with a standby that safekeepers feed
    comparison.py     what is compared afterwards: dumps, and counts of WAL records
    tap.py            the TAP suites, each script with WalproxyShim.pm
    WalproxyShim.pm   gives the nodes of PostgreSQL::Test::Cluster safekeepers and a proxy

Nothing of PostgreSQL's source is in this repository.
"""
