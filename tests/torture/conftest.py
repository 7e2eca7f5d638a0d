"""Tests that take minutes and gigabytes, run by `make torture`. Their clusters are those of the integration tests."""

from tests.integration.conftest import (
    NEWEST,
    folder,
    folder_archive,
    major,
    new_gated,
    servers,
    small_template,
    template,
)

__all__ = ["NEWEST", "folder", "folder_archive", "major", "new_gated", "servers", "small_template", "template"]
