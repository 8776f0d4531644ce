"""The cost of a wafer: area, power, yield; and wafers that cannot be built."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from wse_sim.errors import ConfigError
from wse_sim.hardware import load_wafer
from wse_sim.hardware.chip import Chip, chip_names, equal_area, load_chip, power_of, silicon_of


def test_every_number_has_evidence_and_a_range_or_is_exact():
    for name in chip_names():
        chip = load_chip(name)
        assert set(chip.provenance) == set(Chip.model_fields) - {"name", "provenance"}
        for key, stated in chip.provenance.items():
            assert stated.source
            assert stated.acts == "report" or key == "wafer_mm2"
            if stated.evidence == "assumed" and not key.startswith("reference_"):
                assert stated.range is not None, (name, key)
            if stated.range is not None:
                assert stated.because


def test_shipped_wafers_can_be_built_and_nearly_fill_their_silicon():
    for name in chip_names():
        found = silicon_of(load_wafer(name), load_chip(name))
        assert found.is_buildable
        assert 0.99 < found.area_fraction <= 1.0  # the fraction was read from them


def test_the_published_core():
    """Hot Chips 34 gives 38,000 um2, half of it memory; 850,000 of them cover 32,300 mm2."""
    chip = load_chip("wse2")
    assert chip.core_mm2(48 * 1024) == pytest.approx(0.038, rel=0.005)
    assert silicon_of(load_wafer(), chip).cores_mm2 == pytest.approx(850_000 * 0.038, rel=0.005)


def test_published_defects():
    """The vendor counts 46 defects on 46,225 mm2 at 0.001 per mm2; cores cover 70 % of it."""
    found = silicon_of(load_wafer("wse3"), load_chip("wse3"))
    assert found.dead_cores == pytest.approx(46.2 * 0.7, rel=0.01)


def test_more_memory_per_core_is_refused_at_equal_cores():
    wafer = load_wafer().derive(sram_bytes=96 * 1024)
    found = silicon_of(wafer, load_chip())
    assert found.binding == "wafer area"
    assert found.need / found.limit == pytest.approx((0.019 + 96 / 1024 * 0.405) / 0.038, rel=0.01)
    assert "take fewer cores or less SRAM per core" in found.fault


def test_a_clock_beyond_the_supply_is_refused():
    found = silicon_of(load_wafer().derive(clock_hz=1.5e9), load_chip())
    assert found.binding == "power"
    assert "cannot be supplied" in found.fault


@hypothesis_settings(deadline=None)
@given(st.integers(8, 400))
def test_equal_area_trades_cores_for_memory(kib):
    """n (l + M m) is constant: with M twice as large there are fewer cores, and their area never exceeds the base's."""
    base, chip = load_wafer(), load_chip()
    wafer = equal_area(base.derive(sram_bytes=kib * 1024), base, chip)
    area = wafer.cores * chip.core_mm2(wafer.sram_bytes)
    full = base.cores * chip.core_mm2(base.sram_bytes)
    assert area <= full * (1 + 1e-12)
    assert area > full * 0.99  # whole rows and columns
    assert wafer.rows / wafer.cols == pytest.approx(base.rows / base.cols, rel=0.01)
    assert wafer.rows - wafer.program_rows == base.rows - base.program_rows
    assert wafer.power_active_w == pytest.approx(power_of(wafer, chip), rel=1e-9)
    assert (wafer.cores < base.cores) == (kib > 48)


def test_equal_area_of_an_unchanged_wafer_is_that_wafer():
    base = load_wafer()
    assert equal_area(base, base, load_chip()) is base


def test_no_core_left_is_one_sentence():
    base, chip = load_wafer(), load_chip()
    with pytest.raises(ConfigError, match="too few for a program"):
        equal_area(base.derive(sram_bytes=2**33), base, chip)


def test_yield_is_that_of_drawn_defects():
    """A small wafer with few spares, drawn 20,000 times: groups of 4 + 1 cores, dead with p = 5 %."""
    chip = load_chip().derive(
        repair_rows=4, spare_core_fraction=0.25, defects_per_cm2=1000 * -math.log(0.95), core_logic_mm2=0.1 - 1e-9,
        sram_mm2_per_mib=1e-9, unrepairable_fraction=0.0,
    )  # fmt: skip
    wafer = load_wafer().derive(rows=8, cols=6, program_rows=8, program_cols=6)
    dead = np.random.default_rng(1).random((20_000, 12, 5)) < 0.05
    drawn = float((dead.sum(axis=2) <= 1).all(axis=1).mean())
    assert silicon_of(wafer, chip).yield_fraction == pytest.approx(drawn, abs=0.01)
