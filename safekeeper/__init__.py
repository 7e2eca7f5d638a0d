"""The safekeeper: stores the WAL of one PostgreSQL cluster durably, as a member of a quorum.

Packages, from the top; each imports only from those below it (tests/unit/test_layers.py holds this):

cli           the command line
process       composes a running safekeeper: service, configuration, status pages, metrics, security, retention
serving       sends WAL to standbys and other readers: the replication listener
archiving     uploads committed WAL, and fetches it from the archive for readers
node          runs the acceptor: one event loop, one listener for proposers
storage       the data folder: control file, segment files, recovery after a crash
archive       the archive as a library: objects, catalog, store; it does not import the node
pgwire        PostgreSQL's protocol, server side, without I/O
net           listeners, admission, TLS, HTTP
peers         the protocol between proxy and safekeepers as bytes, and the shared secret
acceptor      the safekeeper's half of the consensus, pure
consensus     the types that both halves of the consensus share, pure
waldecode     the layout of WAL records, pure
base          LSNs, errors, settings, logs, signals

`walproxy` imports `safekeeper`, never the reverse.
"""
