"""Tests; docs/hacking.md says which kind lives where."""
