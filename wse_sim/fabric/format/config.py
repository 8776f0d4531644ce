"""Constants of the fabric as integers, for the jitted executors."""

from __future__ import annotations

import dataclasses
import math

from wse_sim.errors import ConfigError
from wse_sim.hardware.wafer import Wafer


def _milli(value: float) -> int:
    return round(value * 1000)


@dataclasses.dataclass(frozen=True)
class FabricConfig:
    """Integers of one wafer; cycles unless the name states otherwise (milli = 1/1000 cycle).

    ``*_milli`` costs are per element; a rate of 4 elements per cycle is a cost of 250.
    """

    name: str
    rows: int
    cols: int
    colors: int
    hop_cycles: int
    turn_cycles: int
    ramp_cycles: int
    forward_cycles: int
    die_crossing_cycles: int
    die_edge_rows: tuple[int, ...]  # rows of a program that are the first on their die
    wavelet_milli: int
    router_queue_wavelets: int
    ring_wavelets: int
    default_input_wavelets: int
    input_queue_wavelets: tuple[int, ...]
    round_robin: bool
    microthreads: int
    sram_usable_bytes: int
    sram_banks: int
    fp32_bank_period_words: int
    start_code_cycles: int
    start_loaded_cycles: int
    task_pick_cycles: int
    task_start_cycles: int
    map_element_milli: int
    map_vector_milli: int
    triggered_milli: int
    conflict_milli: int
    misaligned_fp16_milli: int
    simd_fp16: int
    mov_milli: tuple[int, int, int]
    add_milli: tuple[int, int, int]
    add_memory_milli: tuple[int, int, int]
    mul_milli: tuple[int, int, int]
    fma_milli: tuple[int, int, int]
    max_milli: tuple[int, int, int]
    fn_milli: tuple[int, ...]
    io_milli: int

    @property
    def ring_delay_cycles(self) -> int:
        """From a word in the output ring of a core to the router: both ramps and the core, less the two cycles outside."""
        return 2 * self.ramp_cycles + self.forward_cycles - 2

    @classmethod
    def from_wafer(cls, wafer: Wafer, **overrides: object) -> FabricConfig:
        """The integers of `wafer`; `overrides` replace single fields.

        The output ring holds the longest output queue and the T_R words on the ramp: 6 + 2 = 8 on WSE-2.  Programs begin
        in the first row of the program rectangle.

        Raises
        ------
        ConfigError
            If an override is not a field.
        """

        def per(rate: float) -> int:
            return _milli(1.0 / rate)

        fp32_add, fp16_add = per(wafer.add_fp32_per_cycle), per(wafer.add_fp16_per_cycle)
        mixed = per(wafer.fma_mixed_per_cycle)
        exp, divide = _milli(wafer.exp_cycles), _milli(wafer.divide_cycles)
        root, special, one = _milli(wafer.sqrt_cycles), _milli(wafer.special_element_cycles), 1000
        # EXP SILU GELU TANH RECIPROCAL SQRT RSQRT RELU ABS NEGATE LOG; silu needs a second division of the same cost
        # STEP SIGMOID GELU_TANH ERF SOFTPLUS SIN COS: compiled scalar code as gelu's where nothing is published
        fns = (
            *(exp, 2 * exp, special, 2 * exp, divide, root, root + divide, one, one, one, exp),
            *(one, 2 * exp, special, special, special, special, special),
        )
        io_bytes_per_cycle = wafer.io_bytes_per_s / (2 * wafer.io_channels_per_edge) / wafer.clock_hz
        fields: dict[str, object] = {
            "name": wafer.name,
            "rows": wafer.rows,
            "cols": wafer.cols,
            "colors": wafer.colors,
            "hop_cycles": wafer.hop_cycles,
            "turn_cycles": wafer.turn_cycles,
            "ramp_cycles": wafer.ramp_cycles,
            "forward_cycles": wafer.forward_cycles,
            "die_crossing_cycles": wafer.die_crossing_cycles,
            "die_edge_rows": wafer.die_edges(wafer.rows) if wafer.die_crossing_cycles else (),
            "wavelet_milli": _milli(wafer.wavelet_cycles),
            "router_queue_wavelets": wafer.router_queue_wavelets,
            "ring_wavelets": max(wafer.output_queue_wavelets) + wafer.ramp_cycles,
            "default_input_wavelets": 2,
            "input_queue_wavelets": wafer.input_queue_wavelets,
            "round_robin": wafer.arbitration == "round_robin",
            "microthreads": wafer.microthreads,
            "sram_usable_bytes": wafer.sram_usable_bytes,
            "sram_banks": wafer.sram_banks,
            "fp32_bank_period_words": wafer.fp32_bank_period_words,
            "start_code_cycles": math.ceil(wafer.vector_start_cycles),
            "start_loaded_cycles": math.ceil(wafer.vector_start_loaded_cycles),
            "task_pick_cycles": math.ceil(wafer.task_pick_cycles),
            "task_start_cycles": math.ceil(wafer.task_start_cycles),
            "map_element_milli": _milli(wafer.map_element_cycles),
            "map_vector_milli": _milli(wafer.map_vector_cycles),
            "triggered_milli": _milli(wafer.triggered_start_cycles),
            "conflict_milli": _milli(wafer.bank_conflict_factor),
            "misaligned_fp16_milli": per(wafer.misaligned_fp16_per_cycle),
            "simd_fp16": int(wafer.peak_fma_fp16_per_cycle),
            "mov_milli": (
                per(wafer.mov_fp32_per_cycle),
                per(wafer.mov_fp16_per_cycle),
                per(wafer.mov_fp32_per_cycle),
            ),
            "add_milli": (fp32_add, fp16_add, mixed),
            "add_memory_milli": (per(wafer.add_fp32_memory_per_cycle), fp16_add, mixed),
            "mul_milli": (per(wafer.mul_fp32_per_cycle), per(wafer.fma_fp16_per_cycle), mixed),
            "fma_milli": (per(wafer.fma_fp32_per_cycle), per(wafer.fma_fp16_per_cycle), mixed),
            "max_milli": (
                per(wafer.max_fp32_per_cycle),
                per(wafer.max_fp16_per_cycle),
                per(wafer.max_fp32_per_cycle),
            ),
            "fn_milli": fns,
            "io_milli": max(1000, _milli(4.0 / io_bytes_per_cycle)),
        }
        for key in overrides:
            if key not in fields:
                raise ConfigError(
                    f"fabric constant '{key}' is unknown; use one of {', '.join(sorted(fields))}"
                )
        return cls(**{**fields, **overrides})  # type: ignore[arg-type]
