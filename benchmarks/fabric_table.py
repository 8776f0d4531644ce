"""Makes one table of the fabric executors from the measured values: supported programs, speed and memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import measurements

HEAD = (
    "executor", "programs", "wafers", "threads", "device", "speed", "bytes of a core", "and of a color", "of a queue",
)  # fmt: skip
QUEUES_OF_A_COLOR = 6  # five of the router, one of the core


def scaled(value: float, unit: str = "") -> str:
    """Format a number with three digits, in G or M where it is large."""
    for size, letter in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}{unit}"


def executors(speed: Mapping[str, float], memory: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Return a row per executor, of WSE-2 and WSE-3 where memory differs; ``speed`` by key of :mod:`benchmarks.fabric`."""

    def rate(key: str) -> str:
        return f"{scaled(speed[key])} router-cycles/s"

    def gain(*keys: str) -> str:
        return f"`--threads N`; two: {' and '.join(f'{speed[key]:.2f}' for key in keys)} times"

    threads = gain("threads2_dense_wafer", "threads2_sparse_1pct")
    stepped = f"{rate('dense_wafer')} dense, {scaled(speed['sparse_1pct'])} at 1 %"
    on_gpu = measurements.read("gpu")["values"]["dense_gpu"] * 996 * 757
    gpu = f"{scaled(on_gpu)} router-cycles/s dense (H200)"
    solved = f"{speed['maxplus_ns_per_word']:.2g} ns a word and queue"
    return [
        ("`oracle`", "all", "all", "1", "CPU", rate("oracle_dense_64"), *_bytes(memory, "oracle wse2")),
        ("`wavelet`", "all, no traces", "WSE-2", threads, "CPU", stepped, *_bytes(memory, "wavelet wse2")),
        ("`wavelet`", "the same", "WSE-3", "`--threads N`", "CPU", rate("dense_256_wse3"), *_bytes(memory, "wavelet wse3")),
        ("`max-plus`", "all; what the equations do not cover is stepped", "all; WSE-3 is stepped", "`--threads N` for components side by side and what is stepped",
         "CPU", solved, *_bytes(memory, "max-plus wse2")),
        ("`gpu`", "all, no traces", "WSE-2", "64 routers each", "NVIDIA GPU", gpu, "see [its page](gpu.md)", "", ""),
        ("CSL", "compiled by `cslc`", "all", gain("threads2_csl_stencil_100"), "CPU", "see [its page](csl-machine.md)",
         *_bytes(memory, "csl wse2")),
    ]  # fmt: skip


def _bytes(memory: Mapping[str, Mapping[str, Any]], key: str) -> tuple[str, str, str]:
    row = memory[key]
    color = row["bytes_per_color"]
    return f"{row['bytes_per_core']:,.0f}", f"{color:,.0f}", f"{color / QUEUES_OF_A_COLOR:,.0f}"
