"""Explains what limits a run: one sentence with a remedy, and the place on the wafer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from wse_sim.engine.result import Area, Result
from wse_sim.report.levers import Lever
from wse_sim.report.text import percent, seconds

MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "Samples/s": "The rate of the whole system: the lower of the wafer's and the host's.",
        "Compute Samples/s": "The rate of the wafer if its input were free.",
        "Transmission Samples/s": "The rate at which hosts and the wafer's I/O deliver samples.",
        "Active PEs (%)": "Cores that belong to some kernel, of the cores that a program may use.",
        "Compute Utilization (%)": "Time in which those cores compute. It counts all work of a core, MFU only the model's arithmetic.",
        "MFU": "Model FLOPs utilization: arithmetic of the model over the peak of the whole wafer.",
    }
)
"""Explanations of the headline numbers, for tooltips."""

RESOURCES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "compute": ("the cores of the slowest kernel", "more cores for it, or less work"),
        "back_pressure": ("streams that fill up between regions", "shorter routes or more memory for samples that wait"),
        "fill_drain": ("filling and draining the pipeline", "a larger batch"),
        "links": ("the busiest links between regions", "another placer: wider or shorter streams"),
        "input_workers": ("hosts that prepare samples", "more input workers per system"),
        "wafer_io": ("the wafer's I/O, with the input", "a narrower type of the inputs, or more I/O bandwidth"),
        "results_io": ("the wafer's I/O, with the results", "--send last, top:K or loss: fewer results leave the wafer"),
        "gradient_sync": ("the sum of gradients over replicas", "a larger batch, or fewer replicas"),
        "system_links": ("the lines between systems", "a cut of the model where less data crosses"),
        "weight_io": ("weights that stream in", "a larger batch, sparse weights, or more I/O bandwidth"),
        "gradient_io": ("gradients that stream out", "a larger batch, or more I/O bandwidth"),
        "launch_floor": ("starting kernels one after another", "a larger batch (or pipelined mode, if the weights fit)"),
        "spill": ("activations that leave the wafer", "a smaller micro-batch, or recomputation"),
        "memoryx_update": ("the update of weights in MemoryX", "a larger batch, or a simpler optimizer"),
        "iteration_boundary": ("the wait for updated weights between steps", "a larger batch"),
        "latency": ("the dependence of a token on the one before", "speculation; more users do not make it slower"),
        "stage": ("the slowest region of the decoder", "more wafers, or fewer users at once"),
    }
)  # fmt: skip
"""For each name in ``result.bindings``: a description of the resource, and a remedy if it limits the run."""


def slowest_area(result: Result) -> Area | None:
    """Return the region that is busy for the longest time; None if kernels use all cores one after the
    other."""
    if len(result.areas) < 2:
        return None
    return max(result.areas, key=lambda area: area.times_s[0])


def named(result: Result, levers: Sequence[Lever] = ()) -> str:
    """Return the binding resource by name and in words, and the levers that help most; without `levers`, the
    general remedy.

    Examples
    --------
    >>> import wse_sim
    >>> named(wse_sim.run("fc-mnist", mode="pipelined", batch=256))
    'input_workers (hosts that prepare samples); more input workers per system would help'
    """
    what, helps = RESOURCES.get(result.binding, ("", ""))
    return result.binding + (f" ({what})" if what else "") + _remedy(levers, helps)


def _remedy(levers: Sequence[Lever], general: str) -> str:
    if levers:
        return f". Helps most: {', then '.join(str(lever) for lever in levers[:3])}"
    return f"; {general} would help" if general else ""


def sentence(result: Result, levers: Sequence[Lever] = ()) -> str:
    """Return a sentence with the binding resource, the levers that help most, and the next resource that
    would bind.

    Without `levers` it has the general remedy for the resource.

    Examples
    --------
    >>> import wse_sim
    >>> from wse_sim.report.levers import levers_of
    >>> result = wse_sim.run("fc-mnist", mode="pipelined", batch=256)
    >>> sentence(result, levers_of(result)).split(". ")[1]
    'Helps most: input_workers_per_system 2 instead of 1 (+100.0 %), then worker_samples_per_s 10 % higher (+10.0 %)'
    """
    what, helps = RESOURCES.get(result.binding, (result.binding.replace("_", " "), ""))
    text = f"This run is limited by {what}{_remedy(levers, helps)}"
    others = sorted(
        ((alone, name) for name, alone in result.bindings.items() if name != result.binding and alone > 0),
        reverse=True,
    )
    if others and result.step_s:
        alone, name = others[0]
        then = RESOURCES.get(name, (name.replace("_", " "), ""))[0]
        text += f". Next: {then}, {seconds(alone)} ({percent(alone / result.step_s)} of the step)"
    return text + "."
