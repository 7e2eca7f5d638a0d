"""Failover: sealing the old primary's timeline, choosing, feeding and promoting a standby."""
