"""Import name of the host interface; see wse_sim.csl.host."""

from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.runtime import SdkRuntime, Task

__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime", "Task"]
