"""The four faces of a kernel agree: values, cycles within the stated band, SRAM within the footprint."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from wse_sim.bench.command import run_kernel
from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import REGISTRY, Tiling, family, load_families, load_path
from wse_sim.kernels.contract.testing import check_faces

WSE2 = load_wafer("wse2")
DOC = Path(__file__).parents[2] / "docs" / "howto" / "own-faces.md"

POINTS = [
    ("broadcast", {"words": 50}, Tiling(2, 9, "grid"), 0.0, {}),
    ("broadcast", {"words": 50}, Tiling(5, 9, "grid", options={"axis": "both"}), 0.0, {}),
    ("broadcast", {"words": 51}, Tiling(1, 9, "grid"), 0.0, {"dtype": "fp16"}),
    ("line_reduce", {"words": 40}, Tiling(2, 23, "grid", "chain"), 0.0, {}),
    ("line_reduce", {"words": 40}, Tiling(1, 23, "grid", "star"), 0.0, {}),
    ("line_reduce", {"words": 40}, Tiling(1, 32, "grid", "tree"), 0.0, {}),
    ("line_reduce", {"words": 40}, Tiling(1, 40, "grid", "two_phase", options={"group": 7}), 0.03, {}),
    ("line_reduce", {"words": 9}, Tiling(1, 61, "grid", "auto"), 0.03, {"dtype": "fp16"}),
    ("reduce2d", {"words": 20}, Tiling(6, 7, "grid", "xy"), 0.03, {}),
    ("reduce2d", {"words": 20}, Tiling(6, 7, "grid", "snake"), 0.0, {}),
    ("allreduce", {"words": 20}, Tiling(2, 21, "grid", "chain"), 0.0, {}),
    (
        "allreduce",
        {"words": 20},
        Tiling(1, 64, "grid", "k_tree", options={"groups": 8}),
        0.02,
        {"dtype": "fp16"},
    ),
    ("point_to_point", {"words": 9, "hops": 5}, Tiling(1, 1, "grid", options={"direction": "S"}), 0.0, {}),
    ("vector_op", {"elements": 777}, Tiling(1, 1, "grid"), 0.005, {"attrs": {"op": "fma"}}),
    ("gemv", {"m": 300, "n": 40}, Tiling(30, 4, "grid", options={"groups": 5}), 0.02, {"dtype": "fp16"}),
    # Three vectors, a row of weights at a time, and 24, one weight at a time; 16 elements in a row keep to their banks.
    (
        "gemv",
        {"m": 300, "n": 64},
        Tiling(30, 4, "grid", options={"groups": 5, "vectors": 3}),
        0.02,
        {"dtype": "fp16"},
    ),
    (
        "gemv",
        {"m": 300, "n": 40},
        Tiling(30, 4, "grid", options={"groups": 5, "vectors": 24}),
        0.02,
        {"dtype": "fp16"},
    ),
    ("gemm", {"m": 24, "k": 16, "n": 40}, Tiling(8, 8, "grid", "summa"), 0.005, {"dtype": "fp32"}),
    (
        "gemm",
        {"m": 45, "k": 40, "n": 60},
        Tiling(5, 5, "grid", options={"skew": False}),
        0.01,
        {"dtype": "fp16"},
    ),
    # Feeders hold 12 weights and collectors 16 sums per output, 50 outputs of 4 bytes.
    (
        "gemm",
        {"m": 64, "k": 60, "n": 50},
        Tiling(4, 5, "streamed"),
        0.03,
        {"dtype": "fp16", "resident_bytes": 3200},
    ),
    (
        "gemm",
        {"m": 64, "k": 60, "n": 50},
        Tiling(4, 10, "streamed", lanes=2),
        0.06,
        {"dtype": "fp16", "resident_bytes": 2400},
    ),
    # Feeders hold 10 activations and collectors 12 sums per token, 30 tokens of 4 bytes.
    (
        "gemm",
        {"m": 30, "k": 60, "n": 60},
        Tiling(6, 5, "stationary", options={"orientation": "kn"}),
        0.03,
        {"dtype": "fp16", "resident_bytes": 1440},
    ),
    (
        "elementwise",
        {"elements": 6400},
        Tiling(4, 4, "streamed"),
        0.01,
        {"attrs": {"ops": "mul,add", "inputs": 3}},
    ),
    ("activation", {"elements": 1600}, Tiling(4, 4, "streamed"), 0.01, {"attrs": {"function": "gelu"}}),
    ("softmax", {"rows": 8, "cols": 60}, Tiling(4, 6, "grid"), 0.02, {}),
    ("norm", {"rows": 8, "cols": 60}, Tiling(4, 6, "grid"), 0.02, {}),
    ("softmax", {"rows": 8, "cols": 60}, Tiling(4, 6, "grid"), 0.02, {"attrs": {"log": True}}),
    ("softmax", {"rows": 5, "cols": 70}, Tiling(2, 9, "grid"), 0.02, {"phase": Phase.INPUT_GRADIENT}),
    ("norm", {"rows": 9, "cols": 60}, Tiling(4, 6, "grid"), 0.02, {"phase": Phase.WEIGHT_GRADIENT}),
    ("cross_entropy", {"rows": 8, "cols": 78}, Tiling(4, 6, "grid"), 0.02, {"phase": Phase.INPUT_GRADIENT}),
    ("norm", {"rows": 6, "cols": 300}, Tiling(2, 20, "grid"), 0.02, {"attrs": {"kind": "rms"}}),
    *(
        (
            "optimizer",
            {"elements": 3200},
            Tiling(4, 4, "streamed"),
            0.01,
            {"attrs": {"algorithm": name}, "resident_bytes": 3200},
        )
        for name in ("sgd", "momentum", "adam", "adamw")
    ),
    *(
        (
            "gradient_norm",
            {"elements": 3200},
            Tiling(rows, cols, "streamed"),
            0.003,
            {"resident_bytes": 12800 // rows},
        )
        for rows, cols in ((1, 1), (4, 4), (3, 9))
    ),
    *(
        (
            "gradient_scale",
            {"elements": 3200},
            Tiling(4, 4, "streamed"),
            0.003,
            {"attrs": attrs, "resident_bytes": 800},
        )
        for attrs in ({}, {"op": "clip"}, {"check": True})
    ),
    ("schedule", {"operators": 20}, Tiling(1, 1, "streamed"), 0.0, {}),
    ("schedule", {"operators": 20}, Tiling(5, 9, "stationary"), 0.0, {}),
    ("dropout", {"elements": 3200}, Tiling(4, 4, "streamed"), 0.01, {}),
    ("dropout", {"elements": 3200}, Tiling(4, 4, "streamed"), 0.01, {"dtype": "fp16", "attrs": {"p": 0.3}}),
    # The feeder column holds 10 tokens of 64 elements.
    (
        "embedding",
        {"rows": 40, "cols": 64, "vocab": 90},
        Tiling(4, 8, "streamed"),
        0.02,
        {"resident_bytes": 2560},
    ),
    (
        "embedding",
        {"rows": 9, "cols": 64, "vocab": 90},
        Tiling(3, 1, "streamed"),
        0.04,
        {"resident_bytes": 1000},
    ),
    ("cross_entropy", {"rows": 8, "cols": 78}, Tiling(4, 6, "grid"), 0.02, {}),
    ("cross_entropy", {"rows": 4, "cols": 13}, Tiling(2, 1, "grid"), 0.02, {}),
    # Feeders and collectors: 60 tokens of 20 outputs, 50 features of 20 outputs.
    *(
        (
            "gemm",
            {"m": 200, "k": 240, "n": 20},
            Tiling(4, 4, "streamed"),
            0.03,
            {"phase": Phase.WEIGHT_GRADIENT, "dtype": dtype, "resident_bytes": 14000},
        )
        for dtype in ("fp16", "fp32")
    ),
    # 3 groups of 64 rows; feeders hold 3 x 12 weights of 30 outputs.
    *(
        (
            "grouped_gemm",
            {"m": 192, "k": 60, "n": 30, "groups": 3},
            Tiling(4, 5, "streamed"),
            0.01,
            {"dtype": dtype, "resident_bytes": 6000},
        )
        for dtype in ("fp16", "fp32")
    ),
    *(
        (
            "batch_gemm",
            {"b": 4, "m": 64, "k": 60, "n": 30},
            Tiling(8, 10, mapping),
            0.04,
            {"dtype": "fp16", "attrs": attrs, "resident_bytes": 6000},
        )
        for mapping, attrs in (("streamed", {}), ("streamed", {"heads": 2}), ("stationary", {}))
    ),
    *(
        (
            "scan",
            {"steps": 8, "width": 64, "batch": 10},
            Tiling(4, 4, "streamed"),
            0.01,
            {"attrs": {"kind": kind}, "resident_bytes": 3840},
        )
        for kind in ("selective", "cumsum")
    ),
    # Three lines of 2 channels rest, in pitches of 24; feeders hold 18 weights of 20 filters.
    *(
        (
            "conv2d",
            {"b": 1, "h": 6, "w": 21, "c": 8, "k": 20, "r": 3, "s": 3, "stride": 1, "out_h": 6, "out_w": 21},
            Tiling(6, 4, "streamed"),
            0.05,
            {"dtype": dtype, "resident_bytes": 2000},
        )
        for dtype in ("fp16", "fp32")
    ),
    *(
        (
            "pool2d",
            {"b": 2, "h": 40, "w": 40, "c": 4, "r": 2, "s": 2, "stride": 2, "out_h": 20, "out_w": 20},
            Tiling(4, 4, "streamed"),
            0.01,
            {"dtype": dtype, "resident_bytes": 3200},
        )
        for dtype in ("fp16", "fp32")
    ),
    (
        "generated",
        {"elements": 6400},
        Tiling(4, 4, "streamed"),
        0.01,
        {"attrs": {"ops": "mul,max", "inputs": 3}},
    ),
    ("halo", {"nz": 80}, Tiling(5, 6, "grid"), 0.01, {}),
    ("stencil25", {"nz": 60, "block": 60}, Tiling(9, 10, "grid"), 0.08, {}),
]


@pytest.mark.slow
def test_cells_and_old_cells_swap_roles_from_step_to_step() -> None:
    """Three steps of a stencil are one step run three times; only `program` writes them separately."""
    case = family("stencil25").program(
        {"nz": 8, "block": 8}, Tiling(9, 9, "grid"), WSE2, attrs={"steps": 3}, dtype="fp32"
    )
    result = run_program(case.program, case.config, inputs=case.inputs)
    assert case.expected
    for name, wanted in case.expected.items():
        np.testing.assert_allclose(result.read(name), wanted, atol=case.tolerance)


@pytest.mark.parametrize(("name", "dims", "tiling", "band", "options"), POINTS)
def test_faces_agree(name, dims, tiling, band, options):
    """The program gives the reference values, in the cycles of `cost`, in the bytes of `footprint`."""
    check_faces(family(name), dims, tiling, WSE2, band=band + 1e-9, **{"dtype": "fp32", **options})


def test_programs_give_the_values_of_compute():
    """The SUMMA program's C equals the product computed by the compute face, tile by tile."""
    gemm, p, tile = family("gemm"), 3, 4
    case = gemm.program({"m": 12, "k": 12, "n": 12}, Tiling(p, p, "grid", "summa"), WSE2, dtype="fp32")
    result = run_program(case.program, case.config, inputs=case.inputs).read("c")
    a = case.inputs["a"].reshape(p, p, tile, tile).transpose(0, 3, 1, 2).reshape(12, 12)
    b = case.inputs["b"].reshape(p, p, tile, tile).transpose(0, 2, 1, 3).reshape(12, 12)
    c = result.reshape(p, p, tile, tile).transpose(0, 3, 1, 2).reshape(12, 12)
    assert np.array_equal(c, gemm.compute(a, b, parts=p))


@pytest.fixture(autouse=True)
def same_families():
    """Remove families that a test loads, because with a foreign family nothing is cached between runs."""
    load_families()
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_the_page_about_writing_a_kernel(tmp_path, monkeypatch):
    """The kernel of docs/howto/own-faces.md loads from its file and passes its own test; the page is short."""
    text = DOC.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    kernel, test = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "saxpy.py").write_text(kernel, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(test, "own-faces.md", "exec"), {})
    # 256 elements per core at 1 per cycle after a start of 21.
    report = run_kernel("saxpy", {"elements": "4096"}, WSE2)
    assert (report.model_cycles, report.fabric_cycles, report.max_abs_error) == (277, 277, 0)


def test_a_disagreeing_face_is_named(tmp_path):
    """A kernel whose cost omits the vector start is reported with the difference and its place."""
    kernel = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)[0]
    wrong = kernel.replace(", startup=wafer.vector_start_cycles", "").replace('"saxpy"', '"wrong_saxpy"')
    (tmp_path / "wrong.py").write_text(wrong, encoding="utf-8")
    assert load_path(tmp_path) == ("wrong_saxpy",)
    # 256 elements per core: 256 cycles instead of 256 + 21.
    with pytest.raises(KernelError, match=r"cost 256 against 277 cycles"):
        check_faces(family("wrong_saxpy"), {"elements": 4096}, Tiling(4, 4, "streamed"), WSE2, band=0.01)


def test_faulty_kernel_files_are_one_sentence(tmp_path):
    """A missing file, import or family each gives a sentence with the remedy."""
    with pytest.raises(KernelError, match="has no Python file"):
        load_path(tmp_path / "missing.py")
    (tmp_path / "bad.py").write_text("import not_there_at_all\n", encoding="utf-8")
    with pytest.raises(KernelError, match=r"bad.py:1: .*not_there_at_all"):
        load_path(tmp_path / "bad.py")
    (tmp_path / "bad.py").write_text("X = 1\n", encoding="utf-8")
    with pytest.raises(KernelError, match="registers no family"):
        load_path(tmp_path / "bad.py")


def test_the_faces_of_every_family_stand_in_one_order():
    """The order is footprint, cost, compute, program, probes, so a reader of one file knows all."""
    order = ("footprint", "cost", "compute", "program", "probes")
    load_families()
    for name, found in REGISTRY.items():
        own = vars(type(found))
        lines = [tuple(own).index(face) for face in order if face in own]
        assert lines == sorted(lines), f"{name}: reorder its faces to {', '.join(order)}"
