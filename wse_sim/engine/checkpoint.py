"""Cost of checkpoints: the step stops while weights and optimizer state are written.

Symbols: P parameters, a bytes each (weight and moments in fp32), R bytes/s, one checkpoint in n steps::

    time of a checkpoint   P a / R                R = storage; if weights are stationary on the wafer at most its I/O
    added to every step    P a / (R n)            amortised: no single step is longer in the result
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from wse_sim.engine.result import Area, Result
from wse_sim.errors import ConfigError
from wse_sim.graph import KernelGraph
from wse_sim.graph.kernel_graph import frozen
from wse_sim.graph.optimizers import optimizer_of, stored_bytes


@dataclass(frozen=True)
class Checkpoints:
    """One checkpoint in `every_steps` steps, written at `storage_bytes_per_s`.

    The default rate is assumed: a shared file system behind the weight servers.
    """

    every_steps: int
    storage_bytes_per_s: float = 1.0e10

    def check(self) -> None:
        """Check that the options are in range.

        Raises
        ------
        ConfigError
            One sentence: value, limit, remedy.
        """
        if self.every_steps < 1:
            raise ConfigError(f"a checkpoint every {self.every_steps} steps is out of range; give at least 1")
        if self.storage_bytes_per_s <= 0:
            raise ConfigError(
                f"storage at {self.storage_bytes_per_s} bytes/s is invalid; give a positive rate"
            )


def checkpoint_bytes(graph: KernelGraph) -> float:
    """Return the bytes of one checkpoint: fp32 weights and the optimizer's fp32 moments."""
    optimizer = optimizer_of(graph)
    return stored_bytes(graph, 4 if optimizer is None else optimizer.checkpoint_bytes, frozen=4)


def with_checkpoints(result: Result, checkpoints: Checkpoints) -> Result:
    """Return the result with the amortised time of checkpoints: all rates fall, and all cores idle
    meanwhile."""
    checkpoints.check()
    if result.phase != "training":
        return result
    plan = result.plan
    rate = checkpoints.storage_bytes_per_s
    if plan.weights_rest:  # they leave through the wafer's edge
        rate = min(rate, plan.wafer.io_bytes_per_s)
    size = checkpoint_bytes(plan.graph)
    extra_s = size / rate / checkpoints.every_steps
    step_s = result.step_s + extra_s
    slower = result.step_s / step_s
    kernels = tuple(
        use
        if use.region is None
        else dataclasses.replace(use, idle_s=use.idle_s + extra_s, utilization=use.utilization * slower)
        for use in result.kernels
    )
    note = (
        f"a checkpoint of {size / 1e9:.3g} GB every {checkpoints.every_steps} steps takes {size / rate:.3g} s: "
        f"{100 * (1 - slower):.2f} % of the time"
    )
    bindings = {**result.bindings, "checkpoints": extra_s}
    return dataclasses.replace(
        result,
        step_s=step_s,
        samples_per_s=result.samples_per_s * slower,
        compute_samples_per_s=result.compute_samples_per_s * slower,
        compute_utilization=result.compute_utilization * slower,
        mfu=result.mfu * slower,
        binding="checkpoints" if extra_s > result.step_s else result.binding,
        bindings=frozen(bindings),
        kernels=kernels,
        areas=tuple(_idler(area, extra_s) for area in result.areas),
        notes=(*result.notes, note),
    )


def _idler(area: Area, extra_s: float) -> Area:
    busy, stalled_input, stalled_output, idle = area.times_s
    return dataclasses.replace(area, times_s=(busy, stalled_input, stalled_output, idle + extra_s))
