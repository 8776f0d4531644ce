"""Errors of the client library that scripts raise and catch."""

from __future__ import annotations

__all__ = [
    "ApplianceClientException",
    "ApplianceCompilationError",
    "ApplianceDeadlockError",
    "ApplianceDropError",
    "ApplianceNanError",
    "ApplianceTensorDropped",
    "ApplianceUnknownError",
    "ClusterJobCancelledByCsctl",
    "PickleError",
]


class ApplianceClientException(Exception):  # noqa: N818  (the public name)
    """Base of the client library's errors."""


class ApplianceNanError(ApplianceClientException):
    """A loss is NaN or infinite."""


class ApplianceTensorDropped(ApplianceClientException):
    """A tensor was dropped; never raised here."""


class ApplianceDropError(ApplianceClientException):
    """Data were dropped; never raised here."""


class PickleError(ApplianceClientException):
    """An object cannot go to a worker."""


class ApplianceCompilationError(ApplianceClientException):
    """A compile failed; here that is a sentence of ``ProgramError``."""


class ApplianceDeadlockError(ApplianceClientException):
    """A run stopped moving; never raised here."""


class ApplianceUnknownError(ApplianceClientException):
    """A cluster failed; never raised here."""


class ClusterJobCancelledByCsctl(ApplianceClientException):
    """A job was cancelled from outside; never raised here."""
