"""wse_sim: an open, cycle-approximate simulator of a wafer-scale engine."""

from wse_sim._version import __version__

__all__ = ["__version__"]
