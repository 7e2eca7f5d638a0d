"""Tests; docs/design/hacking.md says which kind lives where."""
