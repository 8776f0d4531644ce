"""Cycles of scalar code by class of instruction: the cost of a core's main thread besides vector operations."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from wse_sim.hardware.constants import Unit

MOST_REGISTERS = 4
"""Registers besides its DSR of a descriptor of several dimensions that the program may change: an XDSR and all three stride registers."""

Price = Annotated[int, Field(ge=0, le=10**6), Unit("cycles")]


class ScalarCosts(BaseModel):
    """Integer cycles on the issue slot per instruction of a class."""

    scalar_move_cycles: Price
    scalar_alu16_cycles: Price
    scalar_alu32_cycles: Price
    scalar_alu64_cycles: Price
    scalar_mul16_cycles: Price
    scalar_mul32_cycles: Price
    scalar_mul64_cycles: Price
    scalar_div16_cycles: Price
    scalar_div32_cycles: Price
    scalar_div64_cycles: Price
    scalar_load16_cycles: Price
    scalar_load32_cycles: Price
    scalar_load64_cycles: Price
    scalar_load_use_cycles: Price
    scalar_store16_cycles: Price
    scalar_store32_cycles: Price
    scalar_store64_cycles: Price
    scalar_branch_cycles: Price
    scalar_branch_taken_cycles: Price
    scalar_jump_cycles: Price
    scalar_call_cycles: Price
    scalar_return_cycles: Price
    scalar_task_end_cycles: Price
    scalar_f32_add_cycles: Price
    scalar_f32_mul_cycles: Price
    scalar_f32_div_cycles: Price
    scalar_f32_move_cycles: Price
    scalar_f16_add_cycles: Price
    scalar_f16_mul_cycles: Price
    scalar_f16_div_cycles: Price
    scalar_f16_move_cycles: Price
    scalar_convert_cycles: Price
    scalar_math_sqrt_cycles: Price
    scalar_math_rsqrt_cycles: Price
    scalar_math_exp_cycles: Price
    scalar_math_log_cycles: Price
    scalar_math_sin_cycles: Price
    scalar_math_cos_cycles: Price
    scalar_math_tan_cycles: Price
    scalar_math_tanh_cycles: Price
    scalar_math_inv_cycles: Price
    scalar_math_pow_cycles: Price
    scalar_math_round_cycles: Price
    scalar_dsd_change_cycles: Price
    scalar_dsd_add_cycles: Price
    scalar_dsr_load_cycles: Price
    scalar_dsr_shape_cycles: Price
    scalar_xdsr_load_cycles: Price
    scalar_dsr_change_cycles: Price
    scalar_task_bit_cycles: Price
    scalar_register_cycles: Price
    scalar_tsc_cycles: Price
    scalar_trace_cycles: Price
    scalar_random_cycles: Price
    scalar_coordinate_cycles: Price
    scalar_print_cycles: Price
    scalar_config_cycles: Price
    scalar_vector_start_cycles: Price
    scalar_vector_load_cycles: Price
    scalar_vector_issue_cycles: Price
    scalar_vector_dependent_cycles: Price
    scalar_map_start_cycles: Price

    def scalar_costs(self) -> dict[str, int]:
        """Return the cycles by class name; ``task_pick`` is the wafer's own constant, starts of vector operations too."""
        prices = {
            name.removeprefix("scalar_").removesuffix("_cycles"): int(getattr(self, name))
            for name in ScalarCosts.model_fields
        }
        prices["dsr_further"] = prices["xdsr_load"] + (MOST_REGISTERS - 1) * prices["dsr_shape"]
        prices["dsr_load_4d"] = prices["dsr_load"] + prices["dsr_further"]
        # A mapped operation on loaded registers costs map_element_cycles a turn, instead of its start and the loop around it.
        # Whole cycles here; the machine adds up the thousandths.
        turn = int(float(getattr(self, "map_element_cycles", 0)))
        prices["mapped"] = turn - prices["vector_start"]
        return {**prices, "free": 0, "vector": 0, "task_pick": int(getattr(self, "task_pick_cycles", 0))}
