"""fp16 vectors that start half a 32-bit word apart run at half width; columns of odd length do so every other turn."""

import numpy as np
import pytest

from wse_sim.fabric.format.builder import Builder, scalar
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer

WSE2 = load_wafer("wse2")


def _cycles(emit, config=None):
    b = Builder(1, 1, config or FabricConfig.from_wafer(WSE2))
    x, y = b.buffer("x", 130, "fp16", bank=0), b.buffer("y", 130, "fp16", bank=2)
    k = b.core_class("core")
    emit(k, x, y)
    b.place(k, None)
    return run_program(b.build(), b.config, executor="oracle").cycles


# y += s x over 64 elements: 64 / 4 = 16 cycles at full width, 64 / 2 = 32 at half width.
@pytest.mark.parametrize(("x_from", "y_from", "expected"), [(0, 0, 16), (1, 0, 32), (0, 1, 32), (1, 1, 16)])
def test_only_the_distance_of_the_two_vectors_counts(x_from, y_from, expected):
    def emit(k, x, y):
        target = y.dsd(y_from, 64)
        k.fmac(target, target, x.dsd(x_from, 64), scalar(2.0), dtype="fp16", start="none")

    # From element 1 on the banks differ by 1 or 3, never by 0 modulo 4: no bank conflict in any case.
    assert _cycles(emit) == expected


# A map of 4 multiply-accumulates over columns of n: each 2.1 + v(n); v(6) = ceil(6/4) = 2,
# v(7) = (ceil(7/4) + ceil(7/2)) / 2 = (2 + 4) / 2 = 3.  4 x 4.1 = 16.4 -> 17 cycles, 4 x 5.1 = 20.4 -> 21.
@pytest.mark.parametrize(("n", "expected"), [(6, 17), (7, 21)])
def test_columns_of_odd_length_lose_half_the_width_every_other_turn(n, expected):
    def emit(k, x, y):
        k.fmac_vectors(
            x.dsd(0, 4 * n), y.dsd(100, 4), y.dsd(0, n), n, dst_stride=n, dtype="fp16", start="none"
        )

    assert _cycles(emit) == expected


def test_fp32_and_mixed_vectors_have_no_such_rule():
    def emit(dtype):
        def code(k, x, y):
            target = y.dsd(0, 64)
            k.fmac(target, target, x.dsd(1, 64), scalar(2.0), dtype=dtype, start="none")

        return code

    # Mixed multiply-accumulates run at 2 per cycle wherever they start: 64 / 2.
    assert _cycles(emit("mixed")) == 32
    # A machine without the penalty runs the fp16 ones at full width: 64 / 4.
    free = FabricConfig.from_wafer(WSE2.model_copy(update={"misaligned_fp16_per_cycle": 4.0}))
    assert _cycles(emit("fp16"), free) == 16
    assert np.isclose(WSE2.misaligned_fp16_per_cycle, 2.0)
