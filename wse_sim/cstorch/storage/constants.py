"""Keys of the metadata of a checkpoint file."""

from __future__ import annotations

__all__ = ["__CSTORCH_VERSION__"]

__CSTORCH_VERSION__ = "version"
"""Attribute of the file with the version of its format."""
