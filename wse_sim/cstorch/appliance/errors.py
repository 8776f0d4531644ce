"""Errors of the client library that scripts raise and catch."""

from __future__ import annotations

__all__ = [
    "ApplianceClientException",
    "ApplianceDropError",
    "ApplianceNanError",
    "ApplianceTensorDropped",
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
