"""Checks of what the whole-fabric simulation supports: wafers, kernel graphs and plans.

A pipeline supports graphs whose kernels are of the kinds in :data:`wse_sim.whole.regions.KINDS`, or of those that train
(:mod:`wse_sim.whole.trained.coverage`), with one input and one output, in fp16. Streamed weights support a *chain* of dense
layers, where x_0 is the input and W_p, b_p are weight and bias of layer p::

    x_p = act(x_{p-1} W_p + b_p)        act: a function or identity; fp16, sums in fp32; W_p stored as (N, K)

Weights are updated by plain gradient descent. The wafer and the graph are checked before compilation, the plan before its
program is built. Each error message is one sentence with a remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.graph.access import PIXELS
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.activation_slopes import KEPT
from wse_sim.modes.pipelined.loss import LOSS
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.regions import KINDS
from wse_sim.whole.regions.contract import PAIR, POINTWISE, PlacedKernel
from wse_sim.whole.regions.fused_work import FUNCTIONS, items_of
from wse_sim.whole.regions.pointwise_place import operators_of
from wse_sim.whole.tokens import rows_read

MAX_CORES = 200 * 200
"""Most cores that a wafer may have: every core is stepped in every cycle, so a sample takes seconds at this
size."""
COVERED = ", ".join(dict.fromkeys(kind.title for kind in KINDS.values()))
DENSE = "dense layers only; make the model of torch.nn.Linear and ReLU"


# ---- wafer and graph ---------------------------------------------------------------------------------------------


def can_step(wafer: Wafer) -> bool:
    """Return whether the wafer is small enough to be stepped cycle by cycle."""
    return wafer.rows * wafer.cols <= MAX_CORES


def check_wafer(wafer: Wafer) -> None:
    """Check that the wafer is small enough to be stepped cycle by cycle.

    Raises
    ------
    ModelError
        If it has more than :data:`MAX_CORES` cores.
    """
    if not can_step(wafer):
        raise ModelError(
            f"the wafer has {wafer.rows} x {wafer.cols} cores, and the fabric is stepped cycle by cycle on at most "
            f"{MAX_CORES:,}; use a smaller wafer"
        )


def check_graph(graph: KernelGraph) -> None:
    """Check that inference supports the graph; :func:`wse_sim.whole.trained.coverage.check_trained` checks
    training graphs.

    Raises
    ------
    ModelError
        Naming the first kernel that is not covered.
    """
    check_kinds(graph, forward_kernels(graph), KINDS)


def check_streamed_graph(graph: KernelGraph) -> None:
    """Check that weight streaming supports the graph: a chain of dense layers that :func:`inputs_over_rows` has laid out, with
    unary functions on their outputs; in training, that sgd updates all of them.

    Raises
    ------
    ModelError
        Naming the first kernel that is not covered.
    """
    kernels = forward_kernels(graph)
    for kernel in kernels:
        _check_dense(graph, kernel)
    for before, kernel in pairwise(kernels):
        if not set(kernel.inputs) <= set(before.outputs):
            raise ModelError(
                f"kernel '{kernel.name}' reads '{', '.join(kernel.inputs)}' and not the output of '{before.name}'; a "
                "chain of dense layers has no branches, so leave them out"
            )
    kept = [name for kernel in kernels[:-1] for name in kernel.outputs]
    if outputs := [name for name in kept if graph.tensors[name].kind is TensorKind.OUTPUT]:
        raise ModelError(
            f"model '{graph.name}' returns '{outputs[0]}' in addition to its last layer's output; return only that one"
        )
    if graph.training:
        for kernel in kernels:
            if (rows := int(kernel.dims["m"]) // graph.samples) != 1:
                raise ModelError(
                    f"kernel '{kernel.name}' has {rows} rows per sample, limit 1 in training; give samples of one row, or in a "
                    "pipeline layers of an even number of features"
                )
        check_updates(graph, kernels)
    for kernel in graph.kernels:
        if kernel.attrs.get("met"):
            raise ModelError(
                f"kernel '{kernel.name}' has no price, and streamed weights leave no product that includes it; plan the graph "
                "of inputs_over_rows(graph, streamed=True)"
            )


def forward_kernels(graph: KernelGraph) -> list[Kernel]:
    """Return the kernels of the forward pass.

    Raises
    ------
    ModelError
        If there are none.
    """
    kernels = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    if not kernels:
        raise ModelError(
            f"model '{graph.name}' has no kernels; a whole model on the fabric supports {COVERED}"
        )
    return kernels


def check_kinds(graph: KernelGraph, kernels: list[Kernel], kinds: Mapping[str, type[PlacedKernel]]) -> None:
    """Check that every kernel is of one of the `kinds`, with matching numbers of tokens, and that the model
    has one input and one output.

    Raises
    ------
    ModelError
        Naming the first kernel that is not covered.
    """
    read = {name for kernel in kernels for name in kernel.inputs}
    inputs = [name for name in read if graph.tensors[name].kind is TensorKind.INPUT]
    outputs = [name for kernel in kernels for name in kernel.outputs if _leaves(graph, name, read)]
    for kernel in kernels:
        _check_kernel(graph, kernel, kinds)
    for names, what in ((inputs, "takes"), (outputs, "returns")):
        if len(names) != 1:
            listed = ", ".join(f"'{name}'" for name in sorted(names))
            raise ModelError(
                f"model '{graph.name}' {what} {len(names)} tensors ({listed}), a whole model on the fabric one; leave the "
                "others out"
            )
    for fault in _faults_of_rows(graph, kernels, kinds).values():
        raise ModelError(fault)


def _check_kernel(graph: KernelGraph, kernel: Kernel, kinds: Mapping[str, type[PlacedKernel]]) -> None:
    """Check that a kernel is of one of the `kinds`, which supports it.

    Raises
    ------
    ModelError
        If it is not.
    """
    kinds = _kinds_of(graph, kernel, kinds)
    if kernel.family not in kinds:
        covered = ", ".join(dict.fromkeys(kind.title for kind in kinds.values()))
        does = "trains" if graph.training else "has"
        raise ModelError(
            f"kernel '{kernel.name}' is of family {kernel.family}, a whole model on the fabric {does} {covered}; leave it out"
        )
    _check_precision(kernel)
    kinds[kernel.family].check(graph, kernel)
    _check_order(graph, kernel)


def _kinds_of(
    graph: KernelGraph, kernel: Kernel, kinds: Mapping[str, type[PlacedKernel]]
) -> Mapping[str, type[PlacedKernel]]:
    """Return the `kinds`, or those of inference for a frozen layer."""
    return KINDS if kernel.name in frozen_layers(graph) else kinds


def unsupported(graph: KernelGraph, kinds: Mapping[str, type[PlacedKernel]]) -> dict[str, str]:
    """Return why forward kernels of a laid graph cannot run as programs, by name; of the `kinds` that run in its phase.

    How many tensors the model takes and returns, and who updates its weights, is left to those who simulate it.
    """
    found: dict[str, str] = {}
    kernels = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    for kernel in kernels:
        try:
            _check_kernel(graph, kernel, kinds)
        except ModelError as told:
            found[kernel.name] = str(told)
    rest = [kernel for kernel in kernels if kernel.name not in found]
    return found | _faults_of_rows(graph, rest, kinds)


def _faults_of_rows(
    graph: KernelGraph, kernels: list[Kernel], kinds: Mapping[str, type[PlacedKernel]]
) -> dict[str, str]:
    """Return the kernels that have other rows per sample than their operands without pooling them, or an odd number of
    features, and the fault of each.

    Rows between dense layers that have an odd number of features are padded, also by work on their elements.
    """
    found: dict[str, str] = {}
    rows: dict[str, tuple[int, str]] = {}  # of a tensor, and a kernel that has that many
    for kernel in kernels:
        own = _kinds_of(graph, kernel, kinds)[kernel.family].tokens_of(graph, kernel)
        reads = rows_read(graph, kernel) or own
        if not own:
            found[kernel.name] = (
                f"kernel '{kernel.name}' has one result for all {graph.samples} samples, and samples pass the fabric one by one; leave it out"
            )
            continue
        images = {name for name, taken_as in kernel.access.channels if taken_as == PIXELS}  # one row each
        for name in kernel.inputs:
            count = 1 if name in images else reads
            given, other = rows.setdefault(name, (count, kernel.name))
            if given != count:
                found[kernel.name] = (
                    f"kernel '{kernel.name}' has {count} rows per sample and '{other}' {given}; keep as many rows in all layers, "
                    "but for the mean of all tokens or the first one"
                )
        rows |= {name: (1 if name in images else own, kernel.name) for name in kernel.outputs}
    for name, (count, _) in rows.items():
        features = graph.tensors[name].elements // count // graph.samples
        ends = [kernel for kernel in kernels if name in (*kernel.inputs, *kernel.outputs)]
        if features % PAIR and not all(map(_pads, ends)):
            fault = f"tensor '{name}' has {features} features, but each word contains {PAIR}; use an even number of features"
            found = dict.fromkeys((kernel.name for kernel in ends), fault) | found
    return found


def _pads(kernel: Kernel) -> bool:
    """Return whether a kernel works on rows that are padded to whole words: what it makes of the zeros must be finite."""
    return kernel.family == "gemm" or (kernel.family in POINTWISE and {*operators_of(kernel)} <= {*KEPT})


def _leaves(graph: KernelGraph, name: str, read: set[str]) -> bool:
    return name not in read or graph.tensors[name].kind is TensorKind.OUTPUT


def _check_order(graph: KernelGraph, kernel: Kernel) -> None:
    if not kernel.access.reordered or kernel.family == "attention":
        return
    name = kernel.access.reordered[0]
    is_weight = name in kernel.parameters
    remedy = (
        "store it as torch.nn.Linear does"
        if is_weight
        else "leave out transposes, slices and expansions there"
    )
    raise ModelError(
        f"kernel '{kernel.name}' reads '{name}' in another order than it is stored, or only a part of it, and the whole fabric streams "
        f"tensors as they are stored; {remedy}"
    )


def _check_precision(kernel: Kernel) -> None:
    if kernel.dtype != "fp16":
        raise ModelError(
            f"kernel '{kernel.name}' computes in {kernel.dtype}, but a whole model on the fabric computes in fp16; use precision "
            "mixed or fp16"
        )


def _check_dense(graph: KernelGraph, kernel: Kernel) -> None:
    if kernel.family != "gemm":
        raise ModelError(
            f"kernel '{kernel.name}' is of family {kernel.family}, but training and streamed weights on the whole fabric support {DENSE}"
        )
    _check_precision(kernel)
    done, items = ("bias", "relu", *FUNCTIONS), items_of(kernel)
    for item in items:
        if item not in done:
            raise ModelError(
                f"kernel '{kernel.name}' fuses '{item}' to its product; a whole model on the fabric does "
                f"{', '.join(done[:-1])} and {done[-1]} only, so leave the others out"
            )
    if len(kernel.inputs) != 1 or len(kernel.parameters) != 1 + ("bias" in items):
        raise ModelError(
            f"kernel '{kernel.name}' is not a product of one activation with one weight; a whole model on the fabric "
            f"has {DENSE}"
        )
    shape, wanted = (
        graph.tensors[kernel.parameters[0]].shape,
        (int(kernel.dims["n"]), int(kernel.dims["k"])),
    )
    if shape != wanted:
        raise ModelError(
            f"kernel '{kernel.name}' holds its weight as {shape}, but a whole model on the fabric needs {wanted}; use "
            "torch.nn.Linear"
        )
    _check_order(graph, kernel)
    if kernel.attrs.get("orientation", "best") != "kn":
        raise ModelError(
            f"kernel '{kernel.name}' can have two layouts in its region; plan the graph of inputs_over_rows(graph)"
        )


def check_updates(graph: KernelGraph, kernels: list[Kernel]) -> None:
    """Check that sgd updates every weight of `kernels`, and that no two of them share a weight.

    Raises
    ------
    ModelError
        Naming what is not covered.
    """
    updates = [kernel for kernel in graph.kernels if kernel.phase is Phase.UPDATE]
    for kernel in updates:
        if (algorithm := kernel.attrs.get("algorithm", "sgd")) != "sgd":
            raise ModelError(
                f"kernel '{kernel.name}' updates by {algorithm}, but the whole fabric updates by sgd; use optimizer=sgd"
            )
    trained = {name for kernel in updates for name in kernel.parameters}
    seen: dict[str, str] = {}
    for kernel in kernels:
        for name in kernel.parameters:
            if graph.tensors[name].kind is TensorKind.CONSTANT:
                continue
            if name not in trained:
                raise ModelError(
                    f"parameter '{name}' of '{kernel.name}' does not train, and the whole fabric updates all parameters that a gradient "
                    "reaches; train it, or in a pipeline no parameter before it"
                )
            if name in seen:
                raise ModelError(
                    f"parameter '{name}' belongs to '{seen[name]}' and '{kernel.name}', limit one layer in training; "
                    "give each layer its own"
                )
            seen[name] = kernel.name


# ---- plan --------------------------------------------------------------------------------------------------------


def check_plan(
    plan: PipelinedPlan,
    training: bool = False,
    of_graph: Callable[[KernelGraph], None] = check_graph,
) -> None:
    """Check that the plan is supported; `of_graph` checks its graph.

    Raises
    ------
    ModelError
        If it is not.
    """
    if plan.graph.training != training:
        made, use = ("training", "train_whole") if plan.graph.training else ("inference", "run_whole")
        raise ModelError(f"the plan is made for {made}; use {use} with it, or make one of the other phase")
    if any(stage.name == LOSS for stage in plan.stages):
        raise ModelError(
            "the plan has a loss, but the whole fabric adds its own; plan without the option loss"
        )
    if plan.replicas != 1:
        raise ModelError(
            f"a whole model on the fabric has one replica, but this plan has {plan.replicas}; plan with replicas=1"
        )
    check_wafer(plan.wafer)
    of_graph(plan.graph)
    for stage in plan.stages:
        if stage.region.cols == stage.region.compute_cores // stage.region.rows:
            raise ModelError(
                f"stage '{stage.name}' has no column that moves data in its {stage.region.cols} columns; use more "
                "cores or another placer"
            )


def forward_kernel(plan: PipelinedPlan, stage: str) -> Kernel:
    """Return the forward kernel of a stage."""
    names = next(one.kernels for one in plan.stages if one.name == stage)
    return next(k for k in map(plan.graph.kernel, names) if k.phase is Phase.FORWARD)


# ---- plan of weight streaming --------------------------------------------------------------------------------------


def check_streamed(plan: WeightStreamingPlan) -> None:
    """Check that a plan has one system, one micro-batch of dense layers that stays on the wafer, and a free
    row of cores above and below.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    wafer, graph = plan.wafer, plan.graph
    check_wafer(wafer)
    check_streamed_graph(graph)
    if plan.systems != 1:
        raise ModelError(f"the plan has {plan.systems} systems, limit 1 on the fabric; plan with systems=1")
    if plan.micro_batches != 1:
        raise ModelError(
            f"the plan has {plan.micro_batches} micro-batches, limit 1 on the fabric; use a batch of "
            f"{plan.micro_batch}"
        )
    if plan.weight_density != 1.0:
        raise ModelError(
            f"the plan leaves out zero weights (density {plan.weight_density:g}), but the whole fabric sends all; "
            "leave density out"
        )
    if plan.recompute != "none" or plan.spilled_bytes:
        raise ModelError(
            f"the plan recomputes activations ({plan.recompute}) or spills them ({plan.spilled_bytes:.4g} bytes); "
            "use a smaller batch"
        )
    check_outer_rows(wafer)


def check_outer_rows(wafer: Wafer) -> None:
    """Check that there is a row of cores above and below the program rectangle.

    Raises
    ------
    ModelError
        If there is none.
    """
    if wafer.rows - wafer.program_rows < 2:
        raise ModelError(
            f"the wafer has {wafer.rows} rows and programs take {wafer.program_rows}, so no row above and below is "
            f"left for weights that stream in; give program_rows of at most {wafer.rows - 2}"
        )
