"""The protocol between a proxy and its safekeepers as bytes, and how the two authenticate each other.

codec           frames and their bodies
peer_auth       the handshake that proves a shared secret
shared_secret   the secret out of a file
local_secret    the secret of one user on one machine, for set-ups on loopback
"""
