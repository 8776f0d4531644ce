"""Wafers and clusters: shipped ones, derived ones, and those that are refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.errors import ConfigError
from wse_sim.hardware import cluster_names, load_cluster, load_wafer, wafer_names
from wse_sim.hardware.wafer import UNITS
from wse_sim.kernels import Tiling, family


def test_every_constant_of_every_wafer_has_unit_source_and_evidence():
    """A number without provenance cannot be loaded, so all shipped ones have it."""
    for name in wafer_names():
        wafer = load_wafer(name)
        assert set(wafer.provenance) == set(UNITS)
        for key, constant in wafer.provenance.items():
            assert constant.unit == UNITS[key], key
            assert len(constant.source) > 5
            assert getattr(wafer, key) == constant.value


def test_every_uncertain_constant_has_a_range_with_a_reason():
    """A number that is neither a count nor a width of the design, nor documented, has a range."""
    for item in (*map(load_wafer, wafer_names()), *map(load_cluster, cluster_names())):
        for key, constant in item.provenance.items():
            if (constant.evidence == "vendor" and constant.range is None) or isinstance(constant.value, str):
                continue
            assert constant.range is not None, (item.name, key)
            low, high = constant.range
            assert low <= constant.value <= high
            assert len(constant.because) > 8, (item.name, key)
            if constant.evidence == "assumed":
                assert low < high, (item.name, key)


def test_the_public_facts_of_wse2_follow_from_the_file():
    """757 x 996 routers make 753,972; 4 fp16 multiply-accumulates a cycle at 1.1 GHz make 6.63 PFLOP/s."""
    wafer = load_wafer("wse2")
    assert wafer.cores == 757 * 996 == 753_972
    assert wafer.program_cores == 750 * 994 == 745_500
    assert wafer.peak_fp16_flops_per_s == pytest.approx(2 * 4 * 753_972 * 1.1e9)
    # the data sheet says 40 GB of SRAM; 753,972 x 48 KiB is 37 GB, the rest is spare cores
    assert wafer.cores * wafer.sram_bytes == pytest.approx(37.06e9, rel=1e-3)


def test_dies_lie_evenly_and_only_their_edges_between_rows_cost():
    """1172 rows are 7 dies of 167.4 rows; a program begins in row 1 of the fabric.

    A corner of the wafer has the dies of the wafer: 200 rows end on the second one.
    """
    wafer = load_wafer("wse3")
    assert wafer.derive(rows=200, program_rows=200).die_edges(200) == (168,)
    assert wafer.die_edges(1170) == (167, 334, 502, 669, 837, 1004)
    assert wafer.die_edges(167) == ()
    assert wafer.die_edges(100, first_row=160) == (8,)
    cost = wafer.die_crossing_cycles
    assert wafer.crossing_cycles(400, 0) == 2 * cost == wafer.crossing_cycles(0, 400)
    assert (
        wafer.travel_cycles(((0, 0), (0, 700), (400, 700)))
        == 1100 * wafer.hop_cycles + wafer.turn_cycles + 2 * cost
    )
    assert load_wafer("wse2").crossing_cycles(0, 990) == 0


def test_a_derived_wafer_keeps_what_it_does_not_change(tmp_path: Path):
    """`base: wse2` plus one constant is wse2 with that constant."""
    path = tmp_path / "wide.yaml"
    path.write_text(
        "base: wse2\nconstants:\n"
        "  link_bytes_per_cycle: {value: 8.0, unit: bytes/cycle, source: what if, evidence: assumed}\n"
    )
    wide, plain = load_wafer(str(path)), load_wafer("wse2")
    assert wide.link_bytes_per_cycle == 8.0
    assert wide.name == "wide"
    assert wide.provenance["link_bytes_per_cycle"].evidence == "assumed"
    assert wide.sram_bytes == plain.sram_bytes
    assert plain.link_bytes_per_cycle == 4.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "  transmission_core_fraction: {value: 0.28, unit: '1', source: x, evidence: assumed}",
            "'transmission_core_fraction' is no longer a constant; state 'pipeline_efficiency', which is 1 less",
        ),
        (
            "  hop_cyclez: {value: 1, unit: cycles, source: x, evidence: assumed}",
            "'hop_cyclez' is not a constant",
        ),
        (
            "  hop_cycles: {value: 1, unit: ns, source: x, evidence: assumed}",
            "unit 'ns' is wrong; state it in 'cycles'",
        ),
        ("  hop_cycles: {value: 0, unit: cycles, source: x, evidence: assumed}", "hop_cycles"),
        ("  hop_cycles: {value: 1, unit: cycles, source: x, evidence: guess}", "evidence"),
        ("  hop_cycles: {value: 1, unit: cycles}", "needs value, unit, source, evidence"),
        ("  program_rows: {value: 2000, unit: '1', source: x, evidence: assumed}", "exceeds the fabric"),
        ("  colors: {value: 25, unit: '1', source: x, evidence: assumed}", "colors"),
        ("  rows: {value: true, unit: '1', source: x, evidence: assumed}", "true and false are not numbers"),
        ("  clock_hz: {value: .inf, unit: Hz, source: x, evidence: assumed}", "a finite number"),
        (
            "  vector_start_cycles: {value: .nan, unit: cycles, source: x, evidence: assumed}",
            "a finite number",
        ),
        (
            "  fma_mixed_per_cycle: {value: 1e-300, unit: elements/cycle, source: x, evidence: assumed}",
            "0.001",
        ),
        ("  rows: {value: 900000, unit: '1', source: x, evidence: assumed}", "the limit is 100,000,000"),
        (
            "  input_queue_wavelets: {value: [6, 0], unit: wavelets, source: x, evidence: assumed}",
            "input_queue",
        ),
        (
            "  hop_cycles: {value: 1, unit: cycles, source: x, evidence: assumed, range: [2, 3]}",
            "does not contain the value 1",
        ),
        (
            "  sram_reserved_bytes: {value: 50000, unit: bytes, source: x, evidence: assumed}",
            "leaves nothing",
        ),
    ],
)
def test_faulty_wafers_are_refused_with_file_and_key(tmp_path: Path, line: str, says: str):
    """Unknown key, wrong unit, impossible value: one sentence that names file and key."""
    path = tmp_path / "odd.yaml"
    path.write_text(f"base: wse2\nconstants:\n{line}\n")
    with pytest.raises(ConfigError) as fault:
        load_wafer(str(path))
    text = str(fault.value)
    assert says in text
    assert str(path) in text
    assert "\n" not in text


def test_unknown_names_and_missing_files_say_what_to_use():
    """The error for a name that is not shipped lists those that are."""
    with pytest.raises(ConfigError, match="wse1, wse2, wse3"):
        load_wafer("wse9")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_wafer("/nowhere/w.yaml")
    with pytest.raises(ConfigError, match=cluster_names()[0]):
        load_cluster("moon")


def test_changed_constants_are_marked_as_assumed_and_checked():
    """`derive` keeps provenance correct and refuses impossible values."""
    wafer = load_wafer("wse2").derive(io_bytes_per_s=3e11)
    assert wafer.provenance["io_bytes_per_s"].evidence == "assumed"
    with pytest.raises(ConfigError, match="clock_hz"):
        load_wafer("wse2").derive(clock_hz=-1.0)
    with pytest.raises(
        ConfigError, match=r"wafer wse2: key 'transmission_core_fraction' .* 'pipeline_efficiency'"
    ):
        load_wafer("wse2").derive(transmission_core_fraction=0.28)
    cluster = load_cluster().derive(swarmx_fanout=8)
    assert cluster.swarmx_fanout == 8
    with pytest.raises(ConfigError, match="swarmx_fanout"):
        load_cluster().derive(swarmx_fanout=0)


def test_dead_cores_must_lie_on_the_fabric(tmp_path: Path):
    """A defect map names (row, col) of the fabric."""
    path = tmp_path / "dead.yaml"
    path.write_text("base: wse2\ndead_cores: [[5, 7]]\ndead_rows: [100]\n")
    assert load_wafer(str(path)).dead_cores == ((5, 7),)
    path.with_name("far.yaml").write_text("base: wse2\ndead_cores: [[5, 99999]]\n")
    with pytest.raises(ConfigError, match="outside the fabric"):
        load_wafer(str(path.with_name("far.yaml")))


def test_bases_in_a_circle_are_refused(tmp_path: Path):
    """A file that derives from itself over another one is a fault, not an endless search."""
    (tmp_path / "one.yaml").write_text("base: two\n")
    (tmp_path / "two.yaml").write_text("base: one\n")
    with pytest.raises(ConfigError, match="refers back to itself"):
        load_wafer(str(tmp_path / "one.yaml"))


def test_constants_that_move_no_model_say_so():
    """A constant marked "report" or "programs" does not change the price of a kernel."""
    wafer = load_wafer("wse2")
    marked = {name for name, constant in wafer.provenance.items() if constant.acts != "models"}
    assert {"cols_per_die", "microthreads", "power_idle_w"} <= marked
    tiling = Tiling(8, 8, "stationary")
    dims = {"m": 64, "k": 64, "n": 64}
    before = family("gemm").cost(dims, tiling, wafer)
    for name in marked:
        value = getattr(wafer, name)
        if name == "arbitration":
            more = "fixed"
        else:
            more = tuple(2 * v for v in value) if isinstance(value, tuple) else 2 * value
        assert family("gemm").cost(dims, tiling, wafer.derive(**{name: more})).total == before.total, name
