"""Import name of the types and orders of copies; see wse_sim.csl.host.arrays."""

from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder

__all__ = ["MemcpyDataType", "MemcpyOrder"]
