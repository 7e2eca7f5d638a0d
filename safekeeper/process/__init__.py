"""A running safekeeper: composes its parts, reads its settings, publishes its status.

service        start, drain, stop
config         the options, and how they affect each other
security       which listeners need a secret, TLS or users
credential_files  certificates, users and secrets: read, and read again at SIGHUP
status_pages   /status, /healthz, /readyz
metrics        the figures that /metrics publishes
retention      requests the removal of WAL that no member, slot or reader needs
open_files     the limit of file descriptors
"""
