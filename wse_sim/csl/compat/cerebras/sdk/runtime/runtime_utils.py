"""Helper functions for host scripts under the vendor's name in releases before 1.1; see
wse_sim.csl.host.utils."""

from wse_sim.csl.host.utils import input_array_to_u32, memcpy_view

__all__ = ["input_array_to_u32", "memcpy_view"]
