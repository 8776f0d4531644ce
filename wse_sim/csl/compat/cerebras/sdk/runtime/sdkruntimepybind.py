"""Host interface under the vendor's name; see wse_sim.csl.host."""

from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.layout_api import (
    Color,
    Edge,
    Route,
    RoutingPosition,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_edge_routing,
    get_platform,
)
from wse_sim.csl.host.runtime import SdkRuntime, Task

__all__ = [
    "Color",
    "Edge",
    "MemcpyDataType",
    "MemcpyOrder",
    "Route",
    "RoutingPosition",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "Task",
    "get_edge_routing",
    "get_platform",
]
