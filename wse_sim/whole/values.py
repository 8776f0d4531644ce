"""Compare every value of a model on the fabric with PyTorch: in fp32, and rounded where the fabric rounds.

    checked = check_values(model, plan, samples, labels, steps=2)
    print(checked.text())
    checked.worst("gradient").rounded_error

If the input of a ReLU is within a few roundings of zero, one correct program may have the unit on and another
off, and only one of them has the unit's contribution in its gradients. So the check flips such units in the
rounded reference if that brings it closer to the fabric, and reports how many it flipped.

An error is the largest difference of any element over the largest element. A sum of terms of both signs can
be much smaller than its terms (the gradient of a key bias is zero, because softmax ignores it), so the scale
of a gradient or update is at least the median over all of them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, TensorKind
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole.coverage import check_plan, check_streamed
from wse_sim.whole.frozen_layers import frozen_layers, frozen_parameters
from wse_sim.whole.host_part import LOGARITHM
from wse_sim.whole.host_values import constants_of, in_whole_words, patches_of
from wse_sim.whole.reference import Reference
from wse_sim.whole.run import WholeRun, run_whole
from wse_sim.whole.split_products import with_derived, without_derived
from wse_sim.whole.streaming import StreamedRun, run_streamed, train_streamed
from wse_sim.whole.trained.coverage import check_any
from wse_sim.whole.trained.loss import check_loss
from wse_sim.whole.training_run import TrainedRun, train_whole

Floats = NDArray[np.float32]
KINDS = ("loss", "outputs", "gradient", "update")
EPS = 2.0**-11
UNDECIDED = 4 * EPS
"""A ReLU input below this fraction of the largest one may have either sign after rounding."""
MOST_UNDECIDED = 400
NEARER = 0.9
"""A unit is flipped if that reduces the squared differences at least to this fraction."""
SAME = 1e-4
"""Largest difference of two fp32 programs of one model, as a fraction of the largest output."""


@dataclass(frozen=True)
class CheckedValue:
    """Errors of one tensor in a step (counted from 1): against fp32, against the rounded reference, and of
    the latter against fp32.

    `kind` is one of :data:`KINDS`; an update is the change of a parameter since the first step.
    """

    step: int
    kind: str
    name: str
    error: float
    rounded_error: float
    own_error: float  # of the rounded reference


@dataclass(frozen=True)
class CheckedValues:
    """Errors of all tensors.

    Rounding changes `turned` of `selected` ReLU units and pooling windows (rounded reference against fp32,
    first step); `turned_on_fabric` units near zero differ between the fabric and the reference (all steps).
    """

    values: tuple[CheckedValue, ...]
    selected: int
    turned: int
    turned_on_fabric: int

    def worst(self, kind: str) -> CheckedValue:
        """Return the tensor of a kind with the largest error against the rounded reference."""
        return max((one for one in self.values if one.kind == kind), key=lambda one: one.rounded_error)

    def largest(self, kind: str) -> tuple[float, float]:
        """Return the largest errors of a kind: against fp32, and against the rounded reference."""
        of = [one for one in self.values if one.kind == kind]
        return max(one.error for one in of), max(one.rounded_error for one in of)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of tensors that were compared: only outputs in inference."""
        return tuple(kind for kind in KINDS if any(one.kind == kind for one in self.values))

    def as_json(self) -> dict[str, object]:
        """Return all numbers as a JSON-serializable dictionary."""
        return {
            "values": [dataclasses.asdict(one) for one in self.values],
            "selected": self.selected,
            "turned": self.turned,
            "turned_on_fabric": self.turned_on_fabric,
        }

    def text(self) -> str:
        """Return a summary of a few lines for the terminal."""
        lines = []
        for kind in self.kinds:
            worst, (error, _) = self.worst(kind), self.largest(kind)
            where = f" ({worst.name}, step {worst.step})" if kind in ("gradient", "update") else ""
            lines.append(
                f"  {kind}: at most {100 * error:.2f} % from fp32, {100 * worst.rounded_error:.2f} % from PyTorch with the same rounding{where}"
            )
        head = "values compared with PyTorch, relative to the largest of their tensor:"
        if self.selected:
            lines.append(
                f"  rounding flips {self.turned} of {self.selected} units of ReLU and windows of a maximum; "
                f"{self.turned_on_fabric} near zero differ between the fabric and PyTorch with the same rounding"
            )
        return "\n".join([head, *lines])


@dataclass(frozen=True)
class _Step:
    """Results of one step by name; gradients are empty in inference."""

    outputs: Floats
    loss: float
    gradients: Mapping[str, Floats]
    weights: Mapping[str, Floats]


def check_values(
    model: nn.Module,
    plan: PipelinedPlan | WeightStreamingPlan,
    values: Floats,
    labels: NDArray[np.int64] | None = None,
    *,
    rate: float = 0.1,
    loss: str = "cross entropy",
    steps: int = 1,
    in_flight: int | None = None,
) -> CheckedValues:
    """Run the plan of a model on the fabric and in PyTorch, and compare all values.

    `values`, `labels` and `in_flight` are those of :func:`wse_sim.whole.train_whole`; an inference plan takes
    no labels and one step. Every step uses the same samples and the weights of the step before. The model is
    not modified.

    Raises
    ------
    ModelError
        If the plan is not covered or is not one of this model, if it streams weights and the loss is not "squared error", or if
        the host does a part of the model: look-ups, patches, the logarithm of a loss.
    DeadlockError
        If the program stops.
    """
    check_loss(loss)
    if plan.graph.training and labels is None:
        raise ModelError("the plan is made for training and no labels are given; give one for every row")
    if isinstance(plan, WeightStreamingPlan) and plan.graph.training and loss != "squared error":
        raise ModelError(
            f"streamed weights train by squared error, not by '{loss}'; give loss='squared error'"
        )
    _check_whole(plan.graph)
    if isinstance(plan, WeightStreamingPlan):
        check_streamed(plan)
    else:
        check_plan(plan, plan.graph.training, check_any)
    if steps < 1:
        raise ModelError(f"{steps} steps are out of range; give at least one")
    truth = copy.deepcopy(model).float().cpu()
    for name, parameter in truth.named_parameters():
        parameter.requires_grad_(name not in frozen_parameters(plan.graph))
    truth.eval()  # the whole fabric trains without dropout, and covers nothing else that differs in training
    start = {name: value.detach().clone().numpy() for name, value in truth.state_dict().items()}
    x = torch.tensor(np.asarray(values, np.float32))
    start |= constants_of(plan.graph, truth, (x[:1],))
    patches = patches_of(plan.graph, np.asarray(values, np.float32))
    sent = x if patches is None else torch.tensor(patches)
    _check_samples(plan.graph, sent.numpy())
    if not plan.graph.training:
        labels = None
    wanted = None if labels is None else torch.tensor(np.asarray(labels).reshape(-1))
    taught = _Taught(loss, wanted, rate)
    fabric = _Fabric(plan, sent.numpy(), labels, rate, loss, in_flight)
    exact, rounding = (Reference(plan.graph, rounds=rounds) for rounds in (False, True))
    held = [start, start]  # weights of the rounded reference, and on the fabric
    found: list[CheckedValue] = []
    turned = selected = differing = 0
    for number in range(1, (steps if plan.graph.training else 1) + 1):
        if number == 1:
            _check_same((truth, x), exact, sent, with_derived(plan.graph, start))
        true = taught.in_pytorch(truth, x)
        here = fabric.step(held[1])
        alike, units = taught.nearest(rounding, held[0], sent, here.gradients)
        differing += units
        if number == 1:
            turned, selected = _turned(exact.selected, rounding.selected)
        held = [dict(held[0]) | dict(alike.weights), dict(held[1]) | dict(here.weights)]
        found += _compared(number, start, true, alike, here)
    return CheckedValues(tuple(found), selected, turned, differing)


@dataclass(frozen=True)
class _Taught:
    """Steps in PyTorch with one loss, labels and learning rate."""

    loss: str
    labels: torch.Tensor | None
    rate: float

    def in_pytorch(self, model: nn.Module, x: torch.Tensor) -> _Step:
        """Run a step of the model in fp32 and update its parameters."""
        model.zero_grad()
        named = dict(model.named_parameters())
        found = self._step(lambda: result_of(model, x), named)
        with torch.no_grad():
            for name, value in found.weights.items():
                named[name].copy_(torch.tensor(value))
        return found

    def rounded(self, reference: Reference, weights: Mapping[str, Floats], x: torch.Tensor) -> _Step:
        """Run a step of the rounded reference, with per-row gradients like the program's."""
        held = {
            name: torch.tensor(np.asarray(value, np.float32))
            for name, value in with_derived(reference.graph, weights).items()
        }
        frozen, tensors = frozen_layers(reference.graph), reference.graph.tensors
        reached = [kernel for kernel in reference.kernels if kernel.name not in frozen]
        names = [name for kernel in reached for name in kernel.parameters if tensors[name].trains]
        trained = {name: held[name].requires_grad_() for name in names if self.labels is not None}
        found = self._step(lambda: reference(held, x.half().float()), trained)
        return dataclasses.replace(
            found,
            gradients=without_derived(reference.graph, found.gradients, are_gradients=True),
            weights=without_derived(reference.graph, found.weights),
        )

    def _step(self, run: Callable[[], torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> _Step:
        """Run forward, and with labels backward; return outputs, loss, and of the parameters with a gradient its mean and the
        new values."""
        if self.labels is None:
            with torch.no_grad():
                return _Step(_rows(run(), 0).numpy(), 0.0, {}, {})
        rows = len(self.labels)
        outputs = _rows(run(), rows)
        total = self._total(outputs)
        total.backward()  # type: ignore[no-untyped-call]
        sums = {name: one.grad for name, one in parameters.items() if one.grad is not None}
        gradients: dict[str, Floats] = {name: (one / rows).numpy() for name, one in sums.items()}
        moved = {
            name: parameters[name].detach().numpy() - np.float32(self.rate) * gradient
            for name, gradient in gradients.items()
        }
        return _Step(outputs.detach().numpy(), total.item() / rows, gradients, moved)

    def nearest(
        self,
        reference: Reference,
        weights: Mapping[str, Floats],
        x: torch.Tensor,
        wanted: Mapping[str, Floats],
    ) -> tuple[_Step, int]:
        """Run the rounded reference with ReLU units flipped where that brings it closer to gradients
        `wanted`; also return their number."""
        found = self.rounded(reference, weights, x)
        left = _distance(found.gradients, wanted)
        turned: tuple[tuple[int, int], ...] = ()
        units = _undecided(reference.before) if wanted else []
        # A unit with a large contribution hides smaller ones, so repeat until no unit is flipped.
        before = None
        while before != turned:
            before = turned
            for unit in units:
                tried = tuple(sorted({*turned, unit}))
                other = self.rounded(dataclasses.replace(reference, turned=tried), weights, x)
                if (distance := _distance(other.gradients, wanted)) < NEARER * left:
                    found, left, turned = other, distance, tried
        return found, len(turned)

    def _total(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the loss summed over rows."""
        assert self.labels is not None
        if self.loss == "cross entropy":
            return nn.functional.cross_entropy(outputs, self.labels, reduction="sum")
        return 0.5 * ((outputs - nn.functional.one_hot(self.labels, outputs.shape[-1])) ** 2).sum()


def _undecided(before: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Return ReLU units, as (ReLU, element), whose input may have either sign; those nearest to zero first."""
    near = []
    for number, z in enumerate(before):
        parts = z.abs().reshape(-1) / z.abs().max()
        near += [(float(parts[i]), number, int(i)) for i in torch.nonzero(parts < UNDECIDED).reshape(-1)]
    return [(number, element) for _, number, element in sorted(near)[:MOST_UNDECIDED]]


def _distance(a: Mapping[str, Floats], b: Mapping[str, Floats]) -> float:
    """Return the sum of squared differences, each tensor normalized by its largest element."""
    scales = {name: float(np.abs(value).max()) for name, value in b.items()}
    least = float(np.median(list(scales.values()))) if scales else 0.0
    return sum(
        float(((a[name] - b[name].reshape(a[name].shape)) ** 2).sum()) / max(scale, least) ** 2
        for name, scale in scales.items()
    )


def result_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the first tensor that a model returns; others are keys and values for later tokens."""
    found = model(x)
    while not isinstance(found, torch.Tensor):
        found = next(iter(found.values() if isinstance(found, Mapping) else found))
    return found


def _rows(outputs: torch.Tensor, rows: int) -> torch.Tensor:
    """Reshape outputs to (rows, N): one row per label, or along the last axis if `rows` is 0."""
    return outputs.reshape(rows, -1) if rows else outputs.reshape(-1, outputs.shape[-1])


@dataclass(frozen=True)
class _Fabric:
    """Steps on the fabric."""

    plan: PipelinedPlan | WeightStreamingPlan
    values: Floats
    labels: NDArray[np.int64] | None
    rate: float
    loss: str
    in_flight: int | None

    def step(self, weights: Mapping[str, Floats]) -> _Step:
        """Run one step with these weights."""
        run = self._run(weights)
        outputs = run.outputs.astype(np.float32)
        if isinstance(run, WholeRun) or self.labels is None:
            return _Step(outputs, 0.0, {}, {})
        return _Step(outputs, run.loss, run.gradients, run.weights)

    def _run(self, weights: Mapping[str, Floats]) -> WholeRun | TrainedRun | StreamedRun:
        plan, values, labels = self.plan, self.values, self.labels
        if isinstance(plan, WeightStreamingPlan):
            if labels is None or not plan.graph.training:
                return run_streamed(plan, weights, values)
            return train_streamed(plan, weights, values, labels, rate=self.rate)
        if labels is None or not plan.graph.training:
            return run_whole(plan, weights, values)
        return train_whole(
            plan, weights, values, labels, rate=self.rate, loss=self.loss, in_flight=self.in_flight
        )


def _check_whole(graph: KernelGraph) -> None:
    """Check that the host computes no part of the model."""
    by_host = next((note for note in graph.notes if note.startswith("the host ")), "")
    if LOGARITHM in graph.facts:
        by_host = f"the host takes the logarithm of '{graph.facts[LOGARITHM]}'"
    if by_host:
        raise ModelError(
            f"{by_host}, but only models that are on the fabric from end to end have their values checked; "
            "compare the outputs of run_whole or train_whole with the model's"
        )


def _check_samples(graph: KernelGraph, sent: Floats) -> None:
    """Check that samples have the shape for which the graph was made."""
    (taken,) = [one for one in graph.tensors.values() if one.kind is TensorKind.INPUT]
    given = in_whole_words(graph, sent)
    is_alike = given.ndim == len(taken.shape)  # else rows of samples are in other dimensions
    if (
        (len(sent), *taken.shape[1:]) != given.shape
        if is_alike
        else given.size % (taken.elements // graph.samples)
    ):
        raise ModelError(
            f"the samples have shape {tuple(sent.shape)}, but the plan is of a model that takes {taken.shape}; give the model that the "
            "plan was made from, and let a factory make the same one at every call"
        )


def _check_same(
    model: tuple[nn.Module, torch.Tensor], exact: Reference, x: torch.Tensor, weights: Mapping[str, Floats]
) -> None:
    """Check that the plan's graph computes of `x` the outputs that the model computes of its values."""
    held = {name: torch.tensor(np.asarray(value, np.float32)) for name, value in weights.items()}
    if missing := [name for kernel in exact.kernels for name in kernel.parameters if name not in held]:
        raise ModelError(
            f"the model has no parameter '{missing[0]}' that the plan reads; give the model that the plan was made from"
        )
    with torch.no_grad():
        found, wanted = exact(held, x), result_of(*model)
    is_same = found.numel() == wanted.numel()
    if not is_same or float((found.reshape(wanted.shape) - wanted).abs().max()) > SAME * float(
        wanted.abs().max()
    ):
        raise ModelError(
            "the outputs of the model are not those of the plan's graph in fp32; give the model that the plan was made from"
        )


def _turned(exact: list[torch.Tensor], rounding: list[torch.Tensor]) -> tuple[int, int]:
    """Return the number of ReLU units and pooling windows that differ, and the number of all."""
    pairs = list(zip(exact, rounding, strict=True))
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)


def _compared(
    step: int, start: Mapping[str, Floats], true: _Step, alike: _Step, here: _Step
) -> list[CheckedValue]:
    """Return the errors of all tensors of a step."""

    def one(kind: str, name: str, of: tuple[Floats, Floats, Floats], least: float = 0.0) -> CheckedValue:
        truth, rounded, found = (part.reshape(-1) for part in of)
        scale = max(float(np.abs(truth).max()), least)
        return CheckedValue(
            step,
            kind,
            name,
            float(np.abs(found - truth).max()) / scale,
            float(np.abs(found - rounded).max()) / scale,
            float(np.abs(rounded - truth).max()) / scale,
        )

    out = [one("outputs", "outputs", (true.outputs, alike.outputs, here.outputs))]
    if not true.gradients:
        return out
    losses = [np.array([part.loss], np.float32) for part in (true, alike, here)]
    out.append(one("loss", "loss", (losses[0], losses[1], losses[2])))
    moved = [
        {name: part.weights[name] - start[name] for name in true.gradients} for part in (true, alike, here)
    ]
    for kind, parts in (
        ("gradient", [true.gradients, alike.gradients, here.gradients]),
        ("update", moved),
    ):
        scale = float(np.median([np.abs(value).max() for value in parts[0].values()]))
        out += [one(kind, name, (parts[0][name], parts[1][name], parts[2][name]), scale) for name in parts[0]]
    return out
