"""Gradient rules and stored bytes that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.graph import Attr, Kernel, Tensor, TensorKind, frozen
from wse_sim.kernels.contract.family import STRAIGHT_PARTS, Dims, Kept
from wse_sim.kernels.contract.parameters import ProductAttributes
from wse_sim.kernels.contract.tape import DATA, WEIGHT, Changes, Tape
from wse_sim.units import BYTES_PER_DTYPE

FP32_BYTES = 4
LINEAR = frozenset(["add", "sub", "neg", "rsub"])
RESULT_FUNCTIONS = frozenset({"relu", "sigmoid", "tanh", "exp", "sqrt", "rsqrt", "reciprocal"})
"""Functions whose gradient reads the result instead of the operand."""


def fused_items(kernel: Kernel) -> list[str]:
    """Return the operations fused to a product, in order."""
    return [item for item in ProductAttributes.of(kernel.attrs).fused.split(",") if item]


def kept_by_product(kernel: Kernel, tensors: Mapping[str, Tensor], reads_inputs: bool) -> Kept:
    """Return the tensors that a product keeps: inputs that a gradient reads, and result or operand of a fused
    activation."""
    items = fused_items(kernel)
    own = kernel.inputs[:-1] if "residual" in items else kernel.inputs
    results = kernel.outputs if any(item in RESULT_FUNCTIONS for item in items) else ()
    bends = [item for item in items if item not in STRAIGHT_PARTS and item not in RESULT_FUNCTIONS]
    inside = tensors[kernel.outputs[0]].elements * BYTES_PER_DTYPE[kernel.dtype] if bends else 0
    return Kept((*(own if reads_inputs else ()), *results), inside)


def pointwise_gradient(kernel: Kernel, gradient: str, tape: Tape, *, moves: bool = False) -> None:
    """Emit one pass over the result's gradient and stored tensors that produces the gradients of all inputs.

    `moves`: the gradient needs only the result's gradient, as for a copy.
    """
    outputs = [tape.give(t) for t in tape.inputs(kernel)]
    outputs += [tape.give_weight(p) for p in tape.weights(kernel)]
    if outputs:
        reads = (gradient,) if moves else tuple(dict.fromkeys((gradient, *kernel.inputs)))
        tape.emit(kernel, "dx", DATA, reads, tuple(outputs))


def moved_gradient(kernel: Kernel, gradient: str, tape: Tape, op: str) -> None:
    """Move (`op`) the result's gradient to where the elements of (rows, cols) came from."""
    if tape.inputs(kernel):
        tape.emit(
            kernel,
            "dx",
            DATA,
            (gradient,),
            tuple(tape.give(t) for t in tape.inputs(kernel)),
            family="layout",
            dims=frozen(elements=kernel.dims["rows"] * kernel.dims["cols"]),
            attrs=frozen(op=op),
            sample_dim="elements" if kernel.sample_dim else None,
        )


def pass_on(kernel: Kernel, tensor: str, gradient: str, tape: Tape) -> None:
    """Pass the sum's gradient to an addend, reduced over broadcast dimensions."""
    if tape.tensors[tensor].elements == tape.tensors[gradient].elements:
        tape.add(tensor, gradient)
    else:
        reduce_to(kernel, tensor, gradient, tape)


def reduce_to(kernel: Kernel, target: str, gradient: str, tape: Tape) -> None:
    """Sum a gradient to the shape of `target`, a parameter or an input that was broadcast."""
    small, large = tape.tensors[target], tape.tensors[gradient]
    weight = small.kind is TensorKind.PARAMETER
    rows = max(1, min(small.elements, large.elements))
    suffix = "dw" if weight else "dx"
    while not tape.is_free(f"{kernel.name}.{suffix}"):
        suffix += "_"
    tape.emit(
        kernel,
        suffix,
        WEIGHT if weight else DATA,
        (gradient,),
        (tape.give_weight(target) if weight else tape.give(target),),
        family="reduce",
        dims=frozen(rows=rows, cols=max(1, large.elements // rows)),
        attrs=frozen(op="sum"),
        sample_dim=None if not large.per_sample else "rows" if small.per_sample else "cols",
        parameters=(),
    )


def before_fusion(kernel: Kernel, gradient: str, tape: Tape) -> tuple[str, list[str]]:
    """Return the gradient before residual and activation of a product, and the inputs of the product
    itself."""
    items = fused_items(kernel)
    own = list(kernel.inputs)
    if "residual" in items:
        residual = own.pop()
        bent_after = any(item not in STRAIGHT_PARTS for item in items[items.index("residual") :])
        bend = next((item for item in items if item not in STRAIGHT_PARTS), None)
        if bent_after and bend is not None:
            gradient = _bend(kernel, bend, gradient, tape)
            items = [item for item in items if item != bend]
        if residual in tape.wanted:
            tape.add(residual, gradient)
    for bend in items:
        if bend not in STRAIGHT_PARTS:
            gradient = _bend(kernel, bend, gradient, tape)
    return gradient, own


def _bend(kernel: Kernel, function: str, gradient: str, tape: Tape) -> str:
    """Return the gradient before a fused activation."""
    out = kernel.outputs[0]
    name = tape.gradient(out)
    tape.emit(
        kernel,
        "dact",
        DATA,
        (gradient, out),
        (name,),
        family="activation",
        dims=frozen(elements=tape.tensors[out].elements),
        attrs=frozen(function=function),
        sample_dim="elements" if kernel.sample_dim else None,
        parameters=(),
    )
    return name


def unfused(kernel: Kernel) -> dict[str, Any]:
    """Return the attributes of a product without its fused operations."""
    return {key: value for key, value in kernel.attrs.items() if key != "fused"}


def turned(kernel: Kernel, first: str, second: str) -> str | None:
    """Return the dimension of the samples in a gradient's product, which swaps two dimensions of the forward product."""
    return {first: second, second: first}.get(kernel.sample_dim or "", kernel.sample_dim)


def product_gradients(
    kernel: Kernel,
    gradient: str,
    own: list[str],
    tape: Tape,
    *,
    of_weights: tuple[Dims, str | None, bool],
    of_inputs: tuple[Dims, Mapping[str, Attr]],
) -> None:
    """Emit the weight gradient and the input gradient of a product with weights.

    `of_weights` are dims, the dimension of the samples and whether the kernel also sums a bias; `of_inputs` are
    dims and attributes.  If no weight is a matrix, the weight gradient counts no FLOPs.
    """
    if not own:
        _weights_alone(kernel, gradient, tape, of_weights[:2], of_inputs)
        return
    dims, sample, sums_bias = of_weights
    weights = tape.weights(kernel)
    # Weights that the model computes (normalized, averaged, or one for every sample) come after the operand.
    made = [t for t in own[1:] if t in tape.wanted]
    if weights or made:
        matrices = [p for p in (*weights, *made) if _is_matrix(kernel, tape.tensors[p])]
        attrs = unfused(kernel)
        if sums_bias and len(weights) + len(made) > len(matrices):
            attrs["fused"] = "bias"
        changes = Changes(dims=dims, attrs=frozen(attrs), sample_dim=sample)
        if not matrices:
            changes["flops"] = 0
        outputs = (*(tape.give_weight(p) for p in weights), *(tape.give(t) for t in made))
        tape.emit(kernel, "dw", WEIGHT, (*own, gradient), outputs, **changes)
    wanted = [t for t in own if t in tape.wanted and t not in made]
    if wanted:
        dims, attributes = of_inputs
        tape.emit(
            kernel,
            "dx",
            DATA,
            (gradient,),
            tuple(tape.give(t) for t in wanted),
            dims=dims,
            attrs=frozen(attributes),
            sample_dim=turned(kernel, "k", "n"),
            parameters=tuple(p for p in kernel.parameters if len(tape.tensors[p].shape) > 1),
        )


def _is_matrix(kernel: Kernel, tensor: Tensor) -> bool:
    """Return whether weights have more than one number per result: a bias does not, a view of a vector
    may."""
    width = kernel.dims.get("n", kernel.dims["k"])
    return len(tensor.shape) > 1 or tensor.elements > width


def _weights_alone(
    kernel: Kernel,
    gradient: str,
    tape: Tape,
    of_second: tuple[Dims, str | None],
    of_first: tuple[Dims, Mapping[str, Attr]],
) -> None:
    """Emit the gradients of a product of weights with weights (low rank, with itself, or repeated for every
    sample): one product per trained operand."""
    matrices = [p for p in kernel.parameters if _is_matrix(kernel, tape.tensors[p])]
    vectors = [p for p in tape.weights(kernel) if p not in matrices]
    first, second = matrices[0], matrices[-1]
    if len(matrices) == 1 and (known := [p for p in kernel.parameters[:2] if p not in (*matrices, *vectors)]):
        # A scalar that applies to all elements of an operand.
        first, second = (known[0], second) if kernel.parameters[0] == known[0] else (first, known[0])
    dims_of_second, sample = of_second
    for suffix, target, other, dims, attrs, grows in (
        ("dw", second, first, dims_of_second, unfused(kernel), sample),
        ("dx", first, second, *of_first, turned(kernel, "k", "n")),
    ):
        outputs = [tape.give_weight(p) for p in (target, *vectors) if p in tape.wanted]
        vectors = []
        if outputs:
            changes = Changes(dims=dims, attrs=frozen(attrs), sample_dim=grows, parameters=(other,))
            if target not in tape.wanted:
                changes["flops"] = 0
            tape.emit(kernel, suffix, WEIGHT, (gradient,), tuple(outputs), **changes)


def weight_gradient(kernel: Kernel, inputs: tuple[str, ...], tape: Tape) -> bool:
    """Emit one kernel for the gradients of all trained weights, if there are any; return whether there
    are."""
    weights = tape.weights(kernel)
    if weights:
        tape.emit(kernel, "dw", WEIGHT, inputs, tuple(tape.give_weight(p) for p in weights))
    return bool(weights)


def input_gradient(kernel: Kernel, inputs: tuple[str, ...], tape: Tape) -> None:
    """Emit one kernel for the gradients of all inputs, if there are any."""
    if tape.inputs(kernel):
        tape.emit(kernel, "dx", DATA, inputs, tuple(tape.give(t) for t in tape.inputs(kernel)))
