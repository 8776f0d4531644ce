"""Positions on the fabric under the vendor's name; see wse_sim.csl.host.layout_api."""

from wse_sim.csl.host.layout_api import IntRectangle, IntVector

__all__ = ["IntRectangle", "IntVector"]
