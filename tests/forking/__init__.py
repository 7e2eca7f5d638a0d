"""Daemons of tests as children of processes that have imported their modules already."""
