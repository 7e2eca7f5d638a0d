"""Listeners: sockets, admission, TLS and HTTP, for both programs.

accepting       accept a few connections at a time, and go on after a shortage of descriptors
admission       which connections are kept: budgets before and after authentication
listener        what all listeners share
http_server     the HTTP listener
metrics_page    /metrics in Prometheus' text format
tls             certificates and contexts
tls_transport   TLS over an asyncio transport
"""
