"""The command line in this process, as the tests of the doors run it."""

from tests.doors.conftest import wse

__all__ = ["wse"]
