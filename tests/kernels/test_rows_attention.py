"""Attention and the row-wise families on the fabric: values of `compute`, cycles of `cost`, bytes of `footprint`."""

from __future__ import annotations

import pytest

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.timing.probes import measure

WSE2 = load_wafer("wse2")
BACK = Phase.INPUT_GRADIENT


def one_head(
    rows: int, cols: int, others: int, features: int, items: int, mapping: str
) -> tuple[dict, Tiling]:
    """One head that fills `rows` x `cols` cores: `others` queries (keys) and `features` per core."""
    sizes = {"q": rows * others, "kv": items, "d": cols * features}
    if mapping == "stationary":
        sizes = {"q": items, "kv": cols * others, "d": rows * features}
    return {"b": 1, "heads": 1, "kv_heads": 1, **sizes}, Tiling(rows, cols, mapping)


# Rows, columns, queries (keys) and features per core, keys (queries); odd ones fill words and blocks partly.  At rest
# are, in fp16 and fp32 together, at most five tiles of queries x features and five of keys x features.
ATTENTION = [
    ("streamed", (3, 3, 6, 5, 18), Phase.FORWARD, 0.05),
    ("streamed", (2, 4, 7, 9, 31), BACK, 0.20),
    ("streamed", (1, 1, 8, 8, 20), Phase.FORWARD, 0.02),
    ("streamed", (4, 1, 8, 12, 20), BACK, 0.15),
    ("streamed", (4, 4, 16, 12, 64), Phase.FORWARD, 0.03),
    ("streamed", (4, 4, 16, 12, 64), BACK, 0.10),
    ("stationary", (3, 3, 6, 5, 18), Phase.FORWARD, 0.04),
    ("stationary", (4, 2, 7, 9, 32), BACK, 0.10),
    ("stationary", (1, 4, 8, 16, 12), Phase.FORWARD, 0.03),
    ("stationary", (4, 4, 12, 8, 64), Phase.FORWARD, 0.03),
    ("stationary", (4, 4, 12, 8, 64), BACK, 0.05),
]


@pytest.mark.parametrize(("mapping", "shape", "phase", "band"), ATTENTION)
def test_attention_of_a_head(mapping, shape, phase, band):
    """A head's outputs (or its gradients) are those of compute, in the cycles of cost."""
    dims, tiling = one_head(*shape, mapping)
    rows, cols, others, features, items = shape
    # The items are in blocks over the rows (streamed), or at the edge (stationary).
    circulating = (items // rows + 1 if mapping == "streamed" else items) * (features + 1)
    resident = 12 * (others * features + circulating) + 2 * (items // min(rows, cols) + 1) * (others + 1)
    check_faces(
        family("attention"), dims, tiling, WSE2, band=band, resident_bytes=resident, dtype="fp16", phase=phase
    )


@pytest.mark.parametrize(
    ("side", "tile", "groups"),
    [
        (2, (4, 4, 4), 0),
        (3, (5, 3, 7), 0),
        (5, (8, 6, 10), 0),
        (4, (0, 6, 8), 2),
        (9, (0, 5, 6), 3),
        (12, (0, 9, 4), 0),
    ],
)
def test_attention_on_a_grid(side, tile, groups):
    """Prefill of m queries, n keys, d features per core; decode (without m) with the shift of its cache."""
    m, n, d = tile
    dims = {"b": 1, "heads": 1, "kv_heads": 1, "q": side * m or 1, "kv": side * n, "d": side * d}
    tiling = Tiling(side, side, "grid", options={"groups": groups})
    check_faces(family("attention"), dims, tiling, WSE2, band=0.03, dtype="fp16")


LINES = [Tiling(4, 6, "streamed"), Tiling(4, 8, "streamed", lanes=2)]  # softmax: rows that fill their lines
ROWS = [
    *(("softmax", size, {"log": log}) for size in ((8, 60), (96, 30)) for log in (False, True)),
    *(("cross_entropy", size, {}) for size in ((8, 60), (96, 30))),
    *(("norm", size, {"kind": kind}) for size in ((24, 60), (9, 40)) for kind in ("layer", "rms")),
    *(("reduce", size, {"op": op}) for size in ((24, 60), (9, 41)) for op in ("sum", "mean")),
    ("reduce", (9, 40), {"op": "max"}),
    ("reduce", (24, 60), {"op": "amin"}),
]


@pytest.mark.thinned(16)
@pytest.mark.parametrize(("tiling", "dtype"), [(LINES[0], "fp16"), (LINES[1], "fp32")])
@pytest.mark.parametrize(("name", "size", "attrs"), ROWS)
def test_rows_along_lines(name, size, attrs, dtype, tiling):
    """Rows over the cores of a line and complete rows on a core, forward and backward, odd sizes included."""
    phases = [Phase.FORWARD, BACK] + [Phase.WEIGHT_GRADIENT] * (name == "norm")
    if attrs.get("op") in {"max", "amin"}:
        phases = [Phase.FORWARD]
    for phase in phases:
        # At rest are at most two matrices of fp32, vectors a pitch of four apart.
        resident = 8 * 4 * (size[0] + 8) * (size[1] + 8) // 4
        check_faces(
            *(family(name), {"rows": size[0], "cols": size[1]}, tiling, WSE2),
            **{"band": 0.02, "resident_bytes": resident, "dtype": dtype, "phase": phase, "attrs": attrs},
        )


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(("rows", "cols", "k"), [(96, 8, 2), (9, 64, 3), (4, 128, 4), (1, 200, 1)])
def test_topk_finds_values_and_places(rows, cols, k, dtype):
    """Rows are on one core (experts) and over 2 to 8 cores."""
    # fp32 counts its places in as many bytes as fp16 its values; vectors lie a pitch of four apart.
    resident = 4 * (rows * cols // 8 + 4 * cols)
    check_faces(
        *(family("topk"), {"rows": rows, "cols": cols, "k": k}, Tiling(4, 8, "streamed"), WSE2),
        **{"band": 0.01, "resident_bytes": resident, "dtype": dtype},
    )


PROBES = [
    (
        "attention",
        {"b": 8, "heads": 4, "kv_heads": 4, "q": 64, "kv": 64, "d": 64},
        Tiling(16, 60, "streamed", lanes=2),
    ),
    (
        "attention",
        {"b": 1, "heads": 4, "kv_heads": 4, "q": 64, "kv": 64, "d": 64},
        Tiling(40, 12, "stationary"),
    ),
    ("softmax", {"rows": 640, "cols": 100}, Tiling(40, 60, "streamed", lanes=2)),
    ("cross_entropy", {"rows": 64, "cols": 50257}, Tiling(40, 12, "stationary")),
    ("norm", {"rows": 640, "cols": 768}, Tiling(40, 60, "streamed", lanes=2)),
    ("norm", {"rows": 128, "cols": 1024}, Tiling(33, 4, "stationary")),
    ("reduce", {"rows": 640, "cols": 768}, Tiling(40, 60, "streamed", lanes=2)),
    ("topk", {"rows": 4000, "cols": 8, "k": 2}, Tiling(40, 60, "streamed", lanes=2)),
]


@pytest.mark.parametrize(("name", "dims", "tiling"), PROBES)
def test_probes_hold_the_tile_of_the_plan(name, dims, tiling):
    """A probe's program runs, within 20 % of its formula; the parts of attention make up the steady cost."""
    found = family(name)
    phases = [Phase.FORWARD] if name == "topk" else [Phase.FORWARD, BACK]
    for phase in phases:
        how = {"phase": phase, "dtype": "fp16", "attrs": {}}
        probes = found.probes(dims, tiling, WSE2, **how)
        assert probes
        for probe in probes:
            assert measure(probe, WSE2).ratio == pytest.approx(1.0, abs=0.2)
        whole = found.cost(dims, tiling, WSE2, **how)
        stood_for = sum(float(probe.cost.total) for probe in probes)
        assert stood_for <= whole.total
        if name == "attention":
            assert stood_for == pytest.approx(whole.total - whole.idle)


def test_rows_without_a_program_say_so():
    """The gradient of a maximum is one element per row, which the vector instructions cannot find."""
    with pytest.raises(KernelError, match="gradient of 'max' has no fabric program"):
        family("reduce").program({"rows": 4, "cols": 8}, LINES[0], WSE2, phase=BACK, attrs={"op": "max"})
