"""Import name of the helpers of the host; see wse_sim.csl.host.utils."""

from wse_sim.csl.host.utils import (
    calculate_cycles,
    cast_uint32,
    float_to_hex,
    input_array_to_u32,
    make_u48,
    memcpy_view,
    sub_ts,
)

__all__ = [
    "calculate_cycles",
    "cast_uint32",
    "float_to_hex",
    "input_array_to_u32",
    "make_u48",
    "memcpy_view",
    "sub_ts",
]
