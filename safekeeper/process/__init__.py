"""A running safekeeper: everything composed, configured and observed.

service        start, drain, stop
config         options, and what they mean together
security       which listeners need a secret, TLS or users
status_pages   /status, /healthz, /readyz
metrics        what /metrics collects
retention      asks the acceptor to remove WAL that no member, slot or reader needs
open_files     the limit of file descriptors
"""
