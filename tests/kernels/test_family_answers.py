"""A family's answers about itself: FLOPs, kept bytes, gradients, weights of 8 bits and frozen weights."""

from __future__ import annotations

import dataclasses
import re

import pytest

import wse_sim
from wse_sim.bench.command import find
from wse_sim.errors import KernelError, ModelError
from wse_sim.frontend.training import add_training
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind, frozen
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Attributes, Cost, Family, Tiling, attribute, check_kernel, family, register, sizes
from wse_sim.kernels.contract.registry import notes_of, restored
from wse_sim.kernels.families.gemm.attributes import GemmAttributes

ACTIVATION, PARAMETER = TensorKind.ACTIVATION, TensorKind.PARAMETER


def chain(*kernels: Kernel, trains: bool = True, dtype: str = "fp32") -> KernelGraph:
    """Return the kernels in a row on (64, 64) tensors: x0 -> x1 -> ..., each product with its own weight."""
    tensors = {"x0": Tensor("x0", (64, 64), "fp16", TensorKind.INPUT)}
    for i, kernel in enumerate(kernels):
        kind = TensorKind.OUTPUT if i == len(kernels) - 1 else ACTIVATION
        tensors[f"x{i + 1}"] = Tensor(f"x{i + 1}", (64, 64), "fp16", kind)
        for name in kernel.parameters:
            tensors[name] = Tensor(name, (64, 64), dtype, PARAMETER, False, trains or i > 0)
    return KernelGraph("chain", kernels, frozen(tensors), samples=64)


def gemm(i: int, **attrs: str) -> Kernel:
    return Kernel(
        f"g{i}", "gemm", frozen(m=64, k=64, n=64), inputs=(f"x{i}",), outputs=(f"x{i + 1}",),
        parameters=(f"w{i}",), attrs=frozen(attrs), sample_dim="m", flops=2 * 64**3,
    )  # fmt: skip


def test_flops_of_a_grouped_convolution() -> None:
    """4 x 4 outputs, 8 filters of 3 x 3 over 8 channels: 4 groups need a quarter of the multiply-accumulates."""
    dims = {"b": 1, "h": 4, "w": 4, "c": 8, "k": 8, "r": 3, "s": 3, "stride": 1, "out_h": 4, "out_w": 4}
    assert family("conv2d").flops(dims) == 2 * 16 * 8 * 8 * 9
    assert family("conv2d").flops(dims, {"groups": 4}) == 2 * 16 * 8 * 2 * 9


def test_flops_of_a_scan_are_those_of_its_kind() -> None:
    """Recurrent matrices are 4, 3 and 1 times (width, width); a running sum has none."""
    dims = {"steps": 5, "width": 16, "batch": 2}
    one = 2 * 5 * 2 * 16 * 16
    found = [family("scan").flops(dims, {"kind": kind}) for kind in ("lstm", "gru", "rnn_tanh", "cumsum")]
    assert found == [4 * one, 3 * one, one, 0]


def test_backward_attention_has_twice_the_products() -> None:
    """There are four products instead of two, and five if the scores are recomputed."""
    dims = {"b": 1, "heads": 2, "kv_heads": 2, "q": 8, "kv": 8, "d": 4}
    flops, back = family("attention").flops, Phase.INPUT_GRADIENT
    forward = 4 * 2 * 8 * 8 * 4
    assert (flops(dims), flops(dims, {}, back), flops(dims, {"recompute": True}, back)) == (
        forward,
        2 * forward,
        2.5 * forward,
    )


def test_an_unknown_gradient_is_an_error() -> None:
    """A family without a rule was once treated as pointwise; now the error names kernel, family and remedy."""

    class Strange(Family):
        name = "strange"
        dims = ("elements",)

    kernel = Kernel("s", "strange", frozen(elements=4096), inputs=("x1",), outputs=("x2",))
    with restored():
        register(Strange())
        with pytest.raises(ModelError, match="'s': family 'strange' has no gradient; write its method"):
            add_training(chain(gemm(0), kernel))


def test_int8_weights_take_one_byte() -> None:
    """A weight takes one byte in memory and in transfer; the plan states how the products are priced."""
    wafer, dims, tiling = load_wafer("wse2"), {"m": 64, "k": 64, "n": 64}, Tiling(4, 4)
    footprint = family("gemm").footprint
    assert footprint(dims, tiling, wafer).weights_bytes == 16 * 16 * 2
    assert footprint(dims, tiling, wafer, attrs={"weights": "int8"}).weights_bytes == 16 * 16
    half, small = (
        wse_sim.compile(chain(gemm(0, **attrs), dtype=dtype), wafer, mode="weight-streaming", batch=64)
        for attrs, dtype in (({}, "fp16"), ({"weights": "int8"}, "int8"))
    )
    assert [p.weight_bytes for p in half.phases] == [64 * 64 * 2]
    assert [p.weight_bytes for p in small.phases] == [64 * 64]
    assert any("int8 weights take 1 byte" in note for note in small.notes)
    assert notes_of([gemm(0)]) == ()


def test_a_frozen_weight_has_no_gradient_and_no_update() -> None:
    """The first of two products is frozen: neither its weight gradient nor an input gradient is left."""
    graph = add_training(chain(gemm(0, weights="frozen"), gemm(1), trains=False))
    assert [k.name for k in graph if k.phase is not Phase.FORWARD] == ["g1.dw", "g1.update"]
    all_train = add_training(chain(gemm(0), gemm(1)))
    assert {"g0.dw", "g1.dx", "g0.update"} <= {k.name for k in all_train}
    wafer, tiling = load_wafer("wse2"), Tiling(4, 4, options={"training": True, "optimizer": "adamw"})
    dims = {"m": 64, "k": 64, "n": 64}
    rest = [
        family("gemm").footprint(dims, tiling, wafer, attrs=attrs).weights_bytes / 256
        for attrs in ({}, {"weights": "frozen"})
    ]
    assert rest == [18, 2]  # fp16 copy, fp32 master, gradient, two moments; or the copy alone


def test_a_model_with_nothing_to_train_says_so() -> None:
    """With all parameters frozen, the error names the two remedies."""
    graph = chain(gemm(0))
    tensors = {n: dataclasses.replace(t, trains=False) for n, t in graph.tensors.items()}
    with pytest.raises(
        ModelError, match=r"no parameters that train; ask for inference .training=False., or let"
    ):
        add_training(dataclasses.replace(graph, tensors=frozen(tensors)))


@pytest.mark.parametrize("mapping", ["streamed", "stationary"])
@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("gemm", {"m": 64, "k": 32, "n": 48}),
        ("batch_gemm", {"b": 4, "m": 16, "k": 32, "n": 48}),
        (
            "conv2d",
            {"b": 1, "h": 8, "w": 8, "c": 4, "k": 48, "r": 1, "s": 1, "stride": 1, "out_h": 8, "out_w": 8},
        ),
    ],
)
def test_what_is_fused_to_a_product_is_priced(name: str, dims: dict[str, int], mapping: str) -> None:
    """3,072 results on 4 x 4 cores are n = 192 per core: relu takes n / max + o cycles, gelu n e.

    Sums of a gemm come back to the core first, two per word.  The backward kernels have the work in their own kernels.
    """
    found, wafer, tiling = family(name), load_wafer("wse2"), Tiling(4, 4, mapping)

    def cycles(fused: str, phase: Phase = Phase.FORWARD) -> float:
        return float(found.cost(dims, tiling, wafer, phase=phase, attrs={"fused": fused}).total)

    n, o = 192, wafer.vector_start_cycles
    back = n / 2 if name == "gemm" else 0
    assert cycles("relu") - cycles("") == pytest.approx(back + n / wafer.max_fp16_per_cycle + o)
    assert cycles("gelu") - cycles("") == pytest.approx(back + n * wafer.special_element_cycles)
    assert cycles("relu,scale") > cycles("relu") > cycles("")
    assert cycles("relu", Phase.WEIGHT_GRADIENT) == cycles("", Phase.WEIGHT_GRADIENT)
    probes = found.probes(dims, tiling, wafer, attrs={"fused": "bias,scale,gelu"})
    assert [probe.part for probe in probes[1:]] == ["fused bias", "fused scale", "fused gelu"]
    for probe in probes[1:]:  # each is a program that runs
        small = family(probe.family)
        assert small.program({"elements": 16}, probe.tiling, wafer, attrs=probe.attrs).program.buffers


@pytest.mark.parametrize(("states", "steps"), [(8, 6), (300, 4), (512, 2), (1300, 2)])
def test_a_probe_of_a_scan_has_as_many_steps_as_a_core_has_room_for(states: int, steps: int) -> None:
    """Six, or fewer if the longer run, of twice as many steps, has over 24,000 bytes: five operands of two bytes a state and
    step, 24,000 / 20 / states.  At most 512 states run.
    """
    dims, how = {"batch": 1, "steps": 64, "width": states}, {"dtype": "fp16", "attrs": {"kind": "selective"}}
    (probe,) = family("scan").probes(dims, Tiling(1, 1, "streamed"), load_wafer("wse2"), **how)
    assert (probe.start, probe.dims["width"], probe.tile) == (steps, min(states, 512), f"{states} states")


def test_attributes_are_declared_once() -> None:
    """Type, range and default are in one class: the check, the values and the command line use it."""
    declared = family("gemm").parameters()["density"]
    assert (declared.default, declared.low, declared.high) == (1.0, 0, 1)
    assert GemmAttributes.of({}).density == 1.0
    assert GemmAttributes.of({"density": 0.25, "colour": "red"}).density == 0.25
    assert GemmAttributes.of({"density": 0.5}, {"density": 0.25, "skew": False}) == GemmAttributes(
        density=0.5, skew=False
    )
    assert declared.read("0.25", "gemm") == 0.25
    for stated, sentence in (
        ({"density": 2.0}, "attribute density=2.0 is out of range; it takes 0 to 1"),
        ({"density": "half"}, "attribute density='half' is not of type float; give one like 1.0"),
        ({"weights": "int4"}, "attribute weights='int4' is unknown; use \"\", int8, frozen"),
        ({"skew": 1}, "attribute skew=1 is not of type bool"),
    ):
        with pytest.raises(KernelError, match=re.escape(sentence)):
            check_kernel(gemm(0, **stated))


def test_a_family_of_ones_own_has_its_attributes_on_the_command_line() -> None:
    """`--param factor=3` reaches the cost; another type or a value out of range is refused."""

    @dataclasses.dataclass(frozen=True)
    class Scaled(Attributes):
        """Attributes of scaled work."""

        factor: int = attribute(2, "cycles per element", at_least=1, at_most=9)

    class Work(Family):
        """Work of some cycles per element."""

        name = "scaled_work"
        dims = sizes(elements="elements")
        attributes = Scaled

        def cost(self, dims, tiling, wafer, **how):  # type: ignore[no-untyped-def]
            return Cost(compute=Scaled.of(how.get("attrs")).factor * dims["elements"])

    with restored():
        register(Work())
        command, wafer = find("scaled_work"), load_wafer("wse2")
        assert command.model_cycles({"elements": 10}, wafer).total == 20
        assert command.model_cycles({"elements": 10, "factor": "3"}, wafer).total == 30
        with pytest.raises(KernelError, match="factor='10' is out of range; give an integer from 1 to 9"):
            command.read({"factor": "10"})
