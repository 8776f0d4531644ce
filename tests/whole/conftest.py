"""Runs the command line in this process, as the tests of the entry points do."""

from tests.doors.conftest import wse

__all__ = ["wse"]
