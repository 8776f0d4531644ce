"""Helper functions for host scripts under the vendor's name; see wse_sim.csl.host.utils."""

from wse_sim.csl.host.utils import (
    calculate_cycles,
    cast_uint32,
    check_rpc_api,
    float_to_hex,
    get_api_info_dict,
    get_api_info_dict_from_json,
    input_array_to_u32,
    is_valid_primitive_type,
    make_u48,
    memcpy_view,
    parse_host_callable_api,
    sub_ts,
)
from wse_sim.csl.host.utils import output_name as getOutputNameFromCompileOptions

__all__ = [
    "calculate_cycles",
    "cast_uint32",
    "check_rpc_api",
    "float_to_hex",
    "getOutputNameFromCompileOptions",
    "get_api_info_dict",
    "get_api_info_dict_from_json",
    "input_array_to_u32",
    "is_valid_primitive_type",
    "make_u48",
    "memcpy_view",
    "parse_host_callable_api",
    "sub_ts",
]
