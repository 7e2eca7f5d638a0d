"""The protocol between a proxy and its safekeepers as bytes, and their mutual authentication.

codec           frames and their bodies
message_checks  what no valid peer sends, and the limits of its fields
peer_auth       the handshake that proves a shared secret
shared_secret   the secret from a file
local_secret    the secret of one user on one machine, for set-ups on loopback
"""
