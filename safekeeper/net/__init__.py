"""Listeners: sockets, admission, TLS and HTTP, for both programs.

accepting       accepts a few connections at a time, and continues after a shortage of descriptors
admission       which connections are kept: budgets before and after authentication
listener        the common part of all listeners
http_server     the HTTP listener
metrics_page    /metrics in Prometheus' text format
safekeeper_connection   a connection to a safekeeper's proposer listener: TLS, the shared secret, messages
tls             certificates and contexts
tls_transport   TLS over an asyncio transport
"""
