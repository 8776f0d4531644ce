"""Fitted and assumed numbers of a price are in `configs/`, with a range, a reason and a source.

Two guards: every constant of that kind moves what it prices, so it is read from the wafer; and a number that gets a name
in the code of prices, plans and modes is entered here with the reason why it is none of them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wse_sim
from benchmarks.tables.models import FITTED, is_fitted
from wse_sim.compiler.sizing import Group
from wse_sim.graph import Kernel, frozen
from wse_sim.hardware import Wafer, cluster_names, load_cluster, load_wafer, wafer_names
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.mesh import tree_allreduce
from wse_sim.kernels.contract.family import Phase
from wse_sim.modes.generation.decoder import LayerShape
from wse_sim.modes.generation.layer import decode_layer_cycles
from wse_sim.uncertainty.draws import ranged

ROWS = {"rows": 64, "cols": 64}
RESTING = Tiling(8, 8, "stationary")


def _stencil(wafer: Wafer) -> float:
    return float(family("stencil25").cost({"nz": 100, "block": 50}, Tiling(20, 20, "grid"), wafer).total)


def _tree(wafer: Wafer) -> float:
    return float(tree_allreduce(64, 400, 20, wafer).total)


def _softmax(phase: Phase) -> Callable[[Wafer], float]:
    return lambda wafer: float(family("softmax").cost(ROWS, RESTING, wafer, phase=phase).total)


def _rows(wafer: Wafer) -> float:
    """Return the rows of a stage whose work has none of its own."""
    kernel = Kernel("relu", "activation", frozen(elements=64), attrs=frozen(function="relu"))
    return float(Group("relu", kernel, wafer).rows_per_sample)


PRICES: dict[str, tuple[Callable[[Wafer], float], float]] = {
    # What it prices, and by how much that grows if the constant is doubled, computed by hand.
    "stencil_memory_stall_cycles": (_stencil, 100 * 7.4),
    "stencil_neighbour_wait_cycles": (_stencil, 100 * 8.36),
    "stencil_first_block_wait_cycles": (_stencil, 50 * 1.31),
    "tree_root_streams": (_tree, 6 * (21 + 32)),  # a start and 32 words of two elements each
    "tree_handovers": (_tree, 8 * 5),  # two ramps of 2 and a cycle of the core
    "decode_layer_instructions": (
        lambda wafer: float(decode_layer_cycles(LayerShape(4096, 14336), 4096, 420, wafer).total),
        37 * 21,
    ),
    "special_element_cycles": (_softmax(Phase.FORWARD), 64 * 240),  # 64 of 64 x 64 elements a core
    "backward_special_fraction": (_softmax(Phase.INPUT_GRADIENT), 64 * 60),
    "kernel_code_bytes": (
        lambda wafer: float(family("gemm").footprint({"m": 8, "k": 64, "n": 64}, RESTING, wafer).total_bytes),
        1536,
    ),
    "rows_without_rhythm": (_rows, 64),
}


@pytest.mark.parametrize("name", PRICES)
def test_a_constant_without_a_mechanism_is_read_from_the_wafer(name: str):
    """If it is doubled, its price changes by exactly its value."""
    price, more = PRICES[name]
    wafer = load_wafer("wse2")
    assert price(wafer.derive(**{name: 2 * getattr(wafer, name)})) - price(wafer) == pytest.approx(more)


def test_intervals_draw_them():
    """All are drawn except the memory stalls of the stencil, whose sum with another constant is drawn."""
    drawn = {constant.name for constant in ranged(load_wafer("wse2"))}
    assert set(PRICES) - drawn == {"stencil_memory_stall_cycles"}


def test_every_fitted_constant_stands_in_the_table_of_the_page():
    """The table has the fitted constants of all shipped wafers and clusters, and no others."""
    sets = [
        load(name)
        for load, names in ((load_wafer, wafer_names()), (load_cluster, cluster_names()))
        for name in names
    ]
    fitted = {name for one in sets for name, stated in one.provenance.items() if is_fitted(name, stated)}
    assert fitted == set(FITTED)


# Numbers with a name in the code of prices, plans and modes that are no constants of a machine, by reason.
LEFT = {
    "bytes and elements of a word, depths of a queue": "BANKS BF16 CB16 ELEMENT_BYTES FP16 FP16_BYTES FP16_MOST FULL_BITS WORD_BYTES FP32 FP32_BYTES "
    "FP32_OVER_16_BITS GRADIENT_BYTES INDEX_BYTES PAIR QUEUED_WORDS READ_BYTES_PER_MAC SIXTEEN "
    "STREAMED_WEIGHT_BYTES SUM_BYTES THIRTY_TWO TOKEN_BYTES WITH_TABLES WITH_X WRITE_BYTES_PER_MAC",
    "the function that a kernel computes": "CENTRE COURANT CUBE DIRECTIONS EPS FIRST HIDDEN MAXIMUM MINIMUM NEIGHBOUR "
    "NEUTRAL REACH RECURRENT REDUCED ROOT SQUARES SUM SUPPORT TAPS WEIGHTS",
    "instructions of an algorithm, counted in it": "ACCUMULATES ALGORITHMS BUTTERFLY COLLIDING COMPLEX_PRODUCT GATE_INSTRUCTIONS "
    "HALF_BUTTERFLY MEAN_INSTRUCTIONS "
    "NORM_INSTRUCTIONS PRODUCTS ROTARY_INSTRUCTIONS SENDS STARTS SUMS",
    "names of colors, microthreads, buffers": "A_COLOR AHEAD B_COLOR BACK BUFFERS DOWN EAST FEED FEED_QUEUE HOST_COLORS IDS KERNEL_COLORS MOST_HEARD PIECES "
    "RING_COLORS SENDER STATE UP VECTORS WORDS",
    "pieces in which a program works": "BLOCK CHUNK_ELEMENTS GROUP MOST MOST_ABREAST MOST_STREAMS MOST_TOGETHER PIECE SLOT_ELEMENTS WORDS_AHEAD",
    "sizes of runs from which larger ones follow": "CHECK_EVERY ELEMENTS EVEN_TOLERANCE MAX_CYCLE MIN_EVEN_WINDOW MIN_LEFT "
    "MIN_WINDOW PROBE_BYTES PROBE_ELEMENTS PROBE_OUTPUTS PROBE_SIDE PROBE_STATES RELATIVE_TOLERANCE ROUNDS ROWS SIDE "
    "SIMULATED_MICRO_BATCHES STEPS WARM_UP_DEPTHS",
    "choices of this compiler and its schedule": "FILL FILLS INPUT_PREFETCH KEPT LEAST_CACHE LEAST_GAIN "
    "LEAST_MOVING LEAST_OF_LAP LEAST_ROWS LINK_FRACTIONS MAX_LANES MOST_DIRECT MOST_LANES MOST_LOSS_CORES SHORT SMALL_FRACTION STORES WAITING",
    "how far a search goes": "CONGESTION CROWD CROWDED DEFAULT_LIMIT_S DETOURS EQUAL_SLACK FAR FAR_DOUBLINGS FILL_WEIGHT FRACTION_MOVED GAIN HOPELESS "
    "GRID_STEP HEIGHT_STEP INNER_COUNT LADDER LATENCY_FRACTIONS LEAST_GRID LEAST_PATIENCE LEAST_SPREAD LEAST_STACK LOWEST_SHELF "
    "MANY_STAGES MAX_GENERATED_DEPTH MOST_ROUTED MOST_SPREAD MOST_STACKED MOST_TRIALS NEAR_POINTS NEVER NOTICEABLE OVERLOAD "
    "PACE_STEP PACKED PARTS PATIENCE PROMISING QUICK REMEMBERED ROUTED_STAGES SCHEDULED SLACKS SPREAD STEP_GAIN STRIPS TOGETHER "
    "TRIED_STAGES WIDEST WIDTH_MOVED TRAINED_STEP WIDTH_STEP WIRE_LEVELS WIRE_STEP _FAR",
    "limits of what may be asked or shown": "BACK_PRESSURE_TOLERANCE FEW MAX_BUNDLES MAX_COUNTER_POINTS MAX_RESOURCE_SLICES "
    "MAX_SLICES MOST_CORNERS MOST_SIZE SAME UNBOUNDED",
}
PLACES = ("kernels", "compiler", "modes", "engine")


def _holds_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=number):
            return isinstance(number, (int, float)) and not isinstance(number, bool)
        case ast.UnaryOp(operand=part):
            return _holds_number(part)
        case ast.BinOp(left=left, right=right):
            return _holds_number(left) and _holds_number(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return any(_holds_number(part) for part in parts)
    return False


def _named_numbers() -> Iterator[tuple[str, str]]:
    root = Path(wse_sim.__file__).parent
    for place in PLACES:
        for path in (root / place).resolve().rglob("*.py"):
            if "placement" in path.parts:  # rectangles and wires: nothing has a price there
                continue
            for row in ast.parse(path.read_text(encoding="utf-8")).body:
                targets = row.targets if isinstance(row, ast.Assign) else [getattr(row, "target", None)]
                value = getattr(row, "value", None)
                if (
                    not isinstance(row, ast.Assign | ast.AnnAssign)
                    or value is None
                    or not _holds_number(value)
                ):
                    continue
                for target in targets:
                    for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                        yield ast.unparse(name), str(path)


def test_no_number_of_a_price_has_a_name_in_the_code_alone():
    """A new one is a constant of a wafer or a cluster, or is listed above with its reason."""
    known = [name for names in LEFT.values() for name in names.split()]
    assert len(known) == len(set(known))
    found = dict(_named_numbers())
    assert {name: path for name, path in found.items() if name not in known} == {}
    assert set(known) - set(found) == set()  # what is gone is taken off the list
