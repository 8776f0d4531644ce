"""Costs and footprints: equations computed by hand, published points, sensitivity, faults.

One file, because the tests are read beside each other: one paragraph per equation.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.footprints import DIMS
from tests.generated import examples
from tests.work import python_calls
from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import REGISTRY, Cost, Tiling, family, load_families
from wse_sim.kernels.blocks.trees import LineTree, chain, multicast_back, star, two_phase

WSE2 = load_wafer("wse2")
load_families()
GRAPH_FAMILIES = (
    *("gemm", "batch_gemm", "grouped_gemm", "attention", "conv2d", "norm", "softmax", "cross_entropy"),
    *("activation", "elementwise", "dropout", "embedding", "pool2d", "resample", "reduce", "layout", "topk"),
    *("scan", "generated", "rotary", "optimizer"),
)


def price(name: str, dims: dict, tiling: Tiling, wafer=WSE2, **options) -> Cost:
    return family(name).cost(dims, tiling, wafer, **{"dtype": "fp16", "attrs": {}, **options})


def dims_of(name: str) -> dict[str, int]:
    return {key: DIMS[key] for key in family(name).dims}


def test_every_family_of_the_graph_has_a_kernel():
    """The families of the graph contract are in the registry, each with a mapping and a docstring."""
    for name in GRAPH_FAMILIES:
        assert {"stationary", "streamed"} <= set(REGISTRY[name].mappings)
        assert type(REGISTRY[name]).__doc__


def test_streamed_gemm_by_hand():
    """Weights of 8 outputs stream over 4 x 6 cores in 2 lanes of 3 columns."""
    # K = 10 features over 3 columns: f = 4.  M = 40 tokens over 2 lanes x 4 rows: t = 5.
    # Per output: 4 features x ceil(5 / 2) = 12 issue cycles and 5 words of partial sums.
    # fill = 4 + 6 - 2 hops + 2 x 2 + 1 = 13; chain of 3 cores: 2 x (1 + 5) = 12.
    cost = price("gemm", {"m": 40, "k": 10, "n": 8}, Tiling(4, 6, "streamed", lanes=2))
    assert (cost.compute, cost.fabric, cost.startup, cost.idle) == (8 * 12, 8 * 5, 0, 25)


def test_streamed_weight_gradient_by_hand():
    """The weight gradient broadcasts fp16 gradients (half a word each) and sends its sums out."""
    # m = 10 features: f = 4; 40 tokens: t = 5; per output 4 x 3 issue, ceil(5 / 2) words in, 4 words out.
    cost = price(
        "gemm",
        {"m": 10, "k": 40, "n": 8},
        Tiling(4, 6, "streamed", lanes=2),
        phase=Phase.WEIGHT_GRADIENT,
    )
    assert (cost.compute, cost.fabric, cost.ramp) == (8 * 12, 8 * 3, 8 * 4)


def test_stationary_gemm_by_hand():
    """A 22 x 22 block of weights per core: 22 x 11 issue cycles and 22 words per token."""
    dims = {"m": 128, "k": 220, "n": 440}
    cost = price("gemm", dims, Tiling(10, 20, "stationary", options={"orientation": "kn"}))
    assert (cost.compute, cost.fabric) == (128 * 22 * 11, 128 * 22)
    # The weight gradient keeps its sums at rest: no reduction.
    gradient = {"m": 220, "k": 128, "n": 440}
    cost = price("gemm", gradient, Tiling(10, 20, "stationary"), phase=Phase.WEIGHT_GRADIENT)
    assert (cost.compute, cost.fabric) == (128 * 22 * 11, 0)


def test_training_weights_take_eighteen_bytes():
    """fp16 copy 2, master 4, gradient 4, two moments 8: a 22 x 22 block needs 8,712 bytes."""
    tiling = Tiling(10, 20, "stationary", options={"training": True, "optimizer": "adamw"})
    footprint = family("gemm").footprint({"m": 128, "k": 220, "n": 440}, tiling, WSE2, dtype="fp16")
    assert footprint.weights_bytes == 22 * 22 * 18


def test_softmax_and_gelu_elements_are_special():
    """240 cycles per element, spread over the cores; a quarter in the backward pass."""
    tiling = Tiling(10, 10, "streamed")
    assert price("softmax", {"rows": 100, "cols": 50}, tiling).special == 50 * 240
    assert price("softmax", {"rows": 100, "cols": 50}, tiling, phase=Phase.INPUT_GRADIENT).special == 50 * 60
    assert price("activation", {"elements": 5000}, tiling, attrs={"function": "gelu"}).special == 50 * 240
    assert price("activation", {"elements": 5000}, tiling, attrs={"function": "relu"}).special == 0
    assert price("dropout", {"elements": 5000}, tiling, attrs={"p": 0.0}).total == 0


def test_attention_counts_all_scores():
    """Causal attention costs as much as full attention: these mappings skip nothing."""
    dims, tiling = dims_of("attention"), Tiling(8, 16, "streamed", lanes=2)
    assert price("attention", dims, tiling, attrs={"causal": True}) == price("attention", dims, tiling)
    # 2 x 4 x 33 x 33 scores over 128 cores: 69 each; dropout doubles the special elements.
    assert price("attention", dims, tiling).special == 69 * 240
    assert price("attention", dims, tiling, attrs={"dropout": 0.1}).special == 2 * 69 * 240


@pytest.mark.parametrize(
    ("group", "words", "measured"),
    [(4, 4096, 9421), (16, 4096, 8989), (64, 4096, 9061), (28, 64, 926.5)],
)
def test_published_two_phase_reductions(group, words, measured):
    """SpMM_Cerebras result files, 512 cores: reduce-512-* of the suite, within 0.2 %."""
    tiling = Tiling(1, 512, "grid", "two_phase", options={"group": group})
    assert price("line_reduce", {"words": words}, tiling, dtype="fp32").total == pytest.approx(
        measured, rel=2e-3
    )


def test_published_chain_reduction():
    """reduce-512-4096-chain: 4096 + 6 x 511 + 56 = 7218 cycles."""
    tiling = Tiling(1, 512, "grid", "chain")
    assert price("line_reduce", {"words": 4096}, tiling, dtype="fp32").total == 4096 + 6 * 511 + 56 == 7218


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "grid", "measured"),
    [
        (32, 4096, 14336, 480, 20320.6),
        (32, 4096, 14336, 600, 25037.2),
        (40, 5120, 13824, 480, 13685.1),
        (48, 8192, 22016, 480, 5471.4),
    ],
)
def test_published_prefill_rates(layers, hidden, ffn, grid, measured):
    """WaferLLM (arXiv 2502.04563v3), prefill of 4096 tokens: within 0.5 %."""
    from wse_sim.modes.generation.layer import prefill

    model = {"layers": layers, "hidden": hidden, "ffn": ffn}
    assert prefill(model, WSE2, grid=grid, tokens=4096).tokens_per_s == pytest.approx(measured, rel=5e-3)


@pytest.mark.parametrize(
    ("layers", "hidden", "ffn", "grid", "groups", "measured"),
    [
        (32, 4096, 14336, 420, 20, 2699.9),
        (32, 4096, 14336, 540, 20, 2501.5),
        (32, 4096, 14336, 660, 22, 2243.3),
        (40, 5120, 13824, 420, 20, 2039.2),
    ],
)
def test_published_decode_rates(layers, hidden, ffn, grid, groups, measured):
    """WaferLLM (arXiv 2502.04563v3), decode with 4096 keys: within 1 %."""
    from wse_sim.modes.generation.layer import LayerShape, decode, decode_layer_cycles

    model = {"layers": layers, "hidden": hidden, "ffn": ffn}
    rate = decode(model, WSE2, grid=grid, context=4096, groups=groups)
    assert rate.tokens_per_s == pytest.approx(measured, rel=1.1e-2)
    # Joining q k v and up gate saves three of thirteen all-reduces.
    fused = decode_layer_cycles(LayerShape(hidden, ffn), 4096, grid, WSE2, groups=groups, fused=True)
    assert 0.75 < fused.total / rate.cycles_per_layer < 0.9


def test_published_sgemm_and_stencil_and_gemv():
    """A product of 33,000 runs at 349 TFLOP/s (0.5 %); four stencil runs agree within 0.5 %, a 16K GEMV within 7 %."""
    from wse_sim.bench.command import measure

    sgemm = {"m": 33000, "n": 33000, "k": 33000, "rows": 750, "cols": 750, "dtype": "fp32"}
    assert measure("gemm", sgemm, WSE2, quantity="tflops").value == pytest.approx(349.0, rel=5e-3)
    for nz, block, measured in (
        (100, 100, 7341.4),
        (300, 300, 20158.6),
        (500, 250, 32590.7),
        (1000, 334, 64195.4),
    ):
        params = {"nz": nz, "block": block, "rows": 994, "cols": 755, "steps": 100000}
        assert measure("stencil25", params, WSE2, quantity="cycles_per_step").value == pytest.approx(
            measured, rel=5e-3
        )
    gemv = {"m": 16384, "n": 16384, "rows": 512, "cols": 512, "groups": 16}
    assert measure("gemv", gemv, WSE2).value == pytest.approx(1320, rel=5e-2)


def test_a_hundred_thousand_tilings_are_one_call():
    """100,000 tilings of a product take as many calls as one tiling does, in both mappings."""
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(1, 900, 100_000), rng.integers(20, 750, 100_000)
    lanes = rng.integers(1, 12, 100_000)
    dims = {"m": 99 * 2048, "k": 4096, "n": 11008}
    for mapping in ("streamed", "stationary"):
        many = Tiling(rows, cols, mapping, lanes=lanes)
        calls, total = python_calls(lambda many=many: price("gemm", dims, many).total)
        assert total.shape == (100_000,)
        one = Tiling(int(rows[7]), int(cols[7]), mapping, lanes=int(lanes[7]))
        few, value = python_calls(lambda one=one: price("gemm", dims, one).total)
        assert total[7] == value
        assert calls <= few + 20


FASTER = {
    "link": {"wavelet_cycles": 1.0, "hop_cycles": 1},
    "arithmetic": {"fma_mixed_per_cycle": 4.0, "add_fp16_per_cycle": 8.0, "special_element_cycles": 120.0},
    "start": {"vector_start_cycles": 10.0},
}


@pytest.mark.parametrize("name", GRAPH_FAMILIES)
@pytest.mark.parametrize("mapping", ["stationary", "streamed"])
def test_a_better_wafer_is_never_slower(name, mapping):
    """Wider links, wider arithmetic and cheaper starts never cost cycles, in any phase."""
    slow = WSE2.derive(wavelet_cycles=2.0, hop_cycles=2)
    for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT):
        base = price(name, dims_of(name), Tiling(9, 14, mapping), slow, phase=phase)
        assert all(np.min(part) >= 0 for part in base.parts().values())
        for change in FASTER.values():
            better = price(name, dims_of(name), Tiling(9, 14, mapping), slow.derive(**change), phase=phase)
            assert better.total <= base.total


@pytest.mark.parametrize("name", GRAPH_FAMILIES)
@pytest.mark.parametrize("mapping", ["stationary", "streamed"])
def test_arrays_of_tilings_equal_single_tilings(name, mapping):
    """Formulas broadcast: an array of tilings gives the costs and footprints of each tiling alone."""
    rows, cols = np.array([3, 9, 20, 7]), np.array([14, 5, 31, 8])
    many = Tiling(rows, cols, mapping)
    cost = np.broadcast_to(price(name, dims_of(name), many).total, 4)
    need = np.broadcast_to(
        family(name)
        .footprint(dims_of(name), many, WSE2, phase=Phase.FORWARD, dtype="fp16", attrs={})
        .total_bytes,
        4,
    )
    for i in range(4):
        one = Tiling(int(rows[i]), int(cols[i]), mapping)
        assert cost[i] == pytest.approx(price(name, dims_of(name), one).total)
        alone = family(name).footprint(dims_of(name), one, WSE2, phase=Phase.FORWARD, dtype="fp16", attrs={})
        assert need[i] == pytest.approx(alone.total_bytes)


@examples(60)
@example(m=7, k=3, n=1, rows=1, cols=3)
@given(
    m=st.integers(1, 3000),
    k=st.integers(1, 3000),
    n=st.integers(1, 3000),
    rows=st.integers(1, 400),
    cols=st.integers(1, 400),
)
def test_more_cores_never_need_more_memory_or_issue(m, k, n, rows, cols):
    """Doubling a rectangle never raises the issue cycles or the bytes of the fullest core.

    Stationary weights: in either orientation.  The faster of the two is chosen by its whole time and may issue more: on
    1 x 3 cores 7 x 3 x 1 lies along the row (7 cycles of issue, 33 in all), on 2 x 6 cores along the column (14 and 38;
    along the row it would be 7 and 55).
    """
    dims = {"m": m, "k": k, "n": n}
    ways = [("stationary", {"orientation": way}) for way in ("kn", "nk")]
    for mapping, options in (*ways, ("streamed", {})):
        small = Tiling(rows, cols, mapping, options=options)
        large = Tiling(2 * rows, 2 * cols, mapping, options=options)
        assert price("gemm", dims, large).compute <= price("gemm", dims, small).compute
        need = [family("gemm").footprint(dims, t, WSE2, dtype="fp16").total_bytes for t in (small, large)]
        assert need[1] <= need[0]


def test_the_footprint_does_not_shrink_with_the_memory():
    """Half the SRAM changes what fits, not the need."""
    small = WSE2.derive(sram_bytes=WSE2.sram_bytes // 2)
    for name in GRAPH_FAMILIES:
        for mapping in ("stationary", "streamed"):
            need = [
                family(name).footprint(
                    dims_of(name), Tiling(9, 14, mapping), wafer, phase=Phase.FORWARD, dtype="fp16", attrs={}
                )
                for wafer in (WSE2, small)
            ]
            assert need[0].total_bytes <= need[1].total_bytes


def test_sparse_weights_save_their_share():
    """Half the weights need half the triggered work and the same reduction."""
    dims = {"m": 400, "k": 400, "n": 40}
    full, half = (price("gemm", dims, Tiling(10, 10, "streamed"), attrs={"density": d}) for d in (1.0, 0.5))
    assert half.compute == full.compute / 2
    assert half.fabric == full.fabric


def test_the_best_reduction_is_chosen_by_cost():
    """One word over many cores is fastest on a tree, many words on a chain; auto is never worse than any."""
    for words in (1, 30, 1000, 20000):
        costs = {
            algorithm: price(
                "line_reduce", {"words": words}, Tiling(1, 200, "grid", algorithm), dtype="fp32"
            ).total
            for algorithm in ("star", "chain", "tree", "two_phase", "auto")
        }
        assert costs["auto"] == min(costs.values())


def test_attention_on_a_grid():
    """Prefill and decode are the parts of a WaferLLM layer; more keys cost more; there is no backward pass."""
    dims = {"b": 1, "heads": 32, "kv_heads": 8, "q": 4096, "kv": 4096, "d": 128}
    tiling = Tiling(480, 480, "grid")
    # 9 queries x 9 keys per core, and one division per query.
    assert price("attention", dims, tiling).special == 9 * (9 * WSE2.exp_cycles + WSE2.divide_cycles)
    decode = {**dims, "q": 1}
    assert price("attention", decode, tiling).total < 5000 < price("attention", dims, tiling).total
    assert (
        price("attention", decode, tiling).total < price("attention", {**decode, "kv": 65536}, tiling).total
    )
    with pytest.raises(KernelError, match="no backward pass"):
        price("attention", dims, tiling, phase=Phase.INPUT_GRADIENT)


def test_ring_halves_make_a_ring():
    """On 16 cores reduce-scatter and all-gather take 15 steps that send and receive 4 words, with one start of 6 each."""
    # 15 x (2 x 4 + 2 x 6) - 6 + 56 = 350; the all-reduce has one task start for both halves, and one more start.
    halves = [
        price(n, {"words": 64}, Tiling(1, 16, "grid"), dtype="fp32").total
        for n in ("reduce_scatter", "all_gather")
    ]
    ring = price("allreduce", {"words": 64}, Tiling(1, 16, "grid", "ring"), dtype="fp32").total
    assert halves == [350, 350]
    assert ring == 2 * 350 - 56 + 6


def test_costs_add_and_scale():
    """Parts are added part by part; an array times a cost is a cost of arrays."""
    one = Cost(compute=2.0, idle=1.0)
    assert (one + 3 * one).total == 12.0
    assert (np.array([1, 2]) * one).total.tolist() == [3.0, 6.0]


def test_faults_are_one_sentence():
    """Unknown mapping, empty rectangle, too many lanes, unknown precision, algorithm and parameter."""
    from wse_sim.bench.command import find, measure, run_kernel

    dims = {"m": 8, "k": 8, "n": 8}
    for call, words in (
        (lambda: price("gemm", dims, Tiling(2, 2, "wobble")), "has no mapping"),
        (lambda: price("gemm", dims, Tiling(0, 2, "streamed")), "at least 1"),
        (lambda: price("gemm", dims, Tiling(2, 2, "streamed", lanes=3)), "fewer lanes"),
        (lambda: price("gemm", dims, Tiling(2, 2, "streamed"), dtype="fp8"), "precision 'fp8'"),
        (lambda: price("gemm", dims, Tiling(2, 3, "grid")), "equal rows and cols"),
        (lambda: price("optimizer", {"elements": 8}, Tiling(2, 2), attrs={"algorithm": "x"}), "unknown"),
        (lambda: family("attention").program({}, Tiling(2, 2), WSE2, dtype="fp32"), "no fabric program"),
        (lambda: find("wobble"), "use one of"),
        (lambda: find("reduce").read({"wobble": 1}), "it has"),
        (lambda: find("reduce").read({"cores": "many"}), "is not of type int"),
        (lambda: find("vector_op").read({"bank_conflict": "perhaps"}), "true or false"),
        (lambda: find("reduce").read({"algorithm": "magic"}), "is unknown"),
        (lambda: run_kernel("reduce", {}, WSE2, timing="guess"), "model, fabric or both"),
        (lambda: measure("reduce", {}, WSE2, quantity="smiles"), "quantity"),
        (
            lambda: run_kernel("gemm", {"m": 33000, "k": 33000, "n": 33000, "rows": 750, "cols": 750}, WSE2),
            "limit",
        ),
    ):
        with pytest.raises(KernelError, match=words):
            call()


def test_a_long_row_is_sorted_over_the_columns():
    """32 rows of 8192 on 64 x 512 cores: a row is over 512 columns, 16 elements each, with a bitonic sort of pairs."""
    dims = {"rows": 32, "cols": 8192, "k": 8192}
    tiling = Tiling(64, 512, "streamed")
    # 16 values and 16 indices, twice, 2 bytes each.
    assert family("topk").footprint(dims, tiling, WSE2).buffers_bytes == 16 * 4 * 2
    cost = price("topk", dims, tiling)
    # log2 16 = 4: 10 stages within; log2 512 = 9: 45 exchanges, each followed by 4 stages within.
    stages = 10 + 45 * 5
    assert cost.compute == 4 * stages * 16 / WSE2.max_fp16_per_cycle
    assert cost.startup == (4 * stages + 90) * WSE2.vector_start_cycles
    # The distances of all exchanges add up to 2 x 512 - 2 - 9 pieces of 8 words, values and indices.
    assert cost.fabric == 2 * 1013 * 8
    # Scores of 8 experts stay on one core.
    short = family("topk").footprint({"rows": 4096, "cols": 8, "k": 2}, Tiling(32, 32, "streamed"), WSE2)
    # 4 rows per core: scores, their mask, two values and two places.
    assert short.buffers_bytes == 4 * (8 + 8 + 2 + 2) * 2


def test_grouped_weight_gradient_counts_features_and_tokens():
    """m = 640 features over 10 columns and 800 tokens of 4 groups over 5 rows are 64 sums and 40 tokens, twice."""
    dims, tiling = {"m": 640, "k": 800, "n": 96, "groups": 4}, Tiling(5, 10, "streamed")
    found = family("grouped_gemm").footprint(dims, tiling, WSE2, phase=Phase.WEIGHT_GRADIENT)
    assert (found.weights_bytes, found.buffers_bytes) == (2 * 64 * 4, 2 * 64 * 4 + 2 * 40 * 2)


@pytest.mark.parametrize(("cores", "root", "ways"), [(2, 0, 1), (2, 1, 1), (3, 1, 2), (3, 0, 1)])
def test_a_result_goes_back_to_the_ends_of_a_line(cores, root, ways):
    """9 fp32 words need a start and 9 cycles of sending in each direction, then the hops of the last one and the
    handover.
    """
    tree = LineTree(tuple(() for _ in range(cores)), root)
    cost = multicast_back(9, tree, WSE2, "fp32")
    assert (cost.startup, cost.fabric) == (ways * WSE2.vector_start_cycles, ways * 9 * WSE2.wavelet_cycles)
    assert cost.idle == max(root, cores - 1 - root) * WSE2.hop_cycles + WSE2.handover_cycles


@pytest.mark.parametrize("tree", [chain(5), star(5), two_phase(7, 3)])
def test_parents_of_a_tree_are_those_that_receive(tree):
    """The parents are those of networkx; the root has none, represented by -1."""
    graph = nx.DiGraph([(v, child) for v, children in enumerate(tree.children) for child in children])
    assert nx.is_arborescence(graph)
    above = {v: next(graph.predecessors(v), -1) for v in graph}
    assert tree.parents() == [above[v] for v in range(tree.cores)]
    assert above[tree.root] == -1


def test_sums_of_a_row_of_attention_take_a_relay_and_a_hop_per_core():
    """Queries are over rows, keys over columns: a row's maximum and its sum pass all columns, and return as multicasts.

    Each way takes, per further column, a relay (received, worked on, sent on) there and a hop back, and one handover:
    2 ((cols - 1) (relay + hop) + handover) cycles forward, once that in backward.
    """
    from wse_sim.kernels.contract.equations import relay_cycles
    from wse_sim.kernels.families.attention.pairs import pair_cost

    dims = {"b": 1, "heads": 1, "kv_heads": 1, "q": 64, "kv": 64, "d": 16}
    attrs = {"pairs": True, "trains": True, "causal": True}
    step = relay_cycles(WSE2) + WSE2.hop_cycles
    for cols in (2, 4, 8):
        tiling = Tiling(8, cols, "grid")
        one_way = (cols - 1) * step + WSE2.handover_cycles
        forward, backward = (
            float(pair_cost(dims, tiling, WSE2, phase, attrs).stalled_input)
            for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
        )
        assert forward - backward == pytest.approx(one_way)
        assert backward == pytest.approx(one_way)
