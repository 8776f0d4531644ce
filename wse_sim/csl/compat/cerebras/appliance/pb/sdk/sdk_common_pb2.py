"""Data types and orders of copies under the vendor's name; see wse_sim.csl.host.arrays."""

from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder

__all__ = ["MemcpyDataType", "MemcpyOrder"]
