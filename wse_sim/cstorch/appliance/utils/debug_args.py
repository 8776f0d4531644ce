"""Debug arguments under the name of later releases."""

from __future__ import annotations

from wse_sim.cstorch.appliance.run_utils import (
    DebugArgs,
    get_debug_args,
    update_debug_args_from_keys,
    update_debug_args_with_autogen_policy,
    update_debug_args_with_job_labels,
    write_debug_args,
)

__all__ = [
    "DebugArgs",
    "get_debug_args",
    "update_debug_args_from_keys",
    "update_debug_args_with_autogen_policy",
    "update_debug_args_with_job_labels",
    "write_debug_args",
]
