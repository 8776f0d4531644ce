"""Choice of the micro-batch: the number of samples that are processed together.

A larger micro-batch pays launch floors and streams of weights less often. If its activations do not fit on
the wafer, they are sent to the servers and back, which takes up to twice the arithmetic. So the rate has one
step down, where the spill starts. Symbols: P samples of one system, k passes, b = ceil(P / k) the
micro-batch::

    largest     the least k of 1, 2, 4, ... with which a kernel fits at all
    no-spill    k = 1 if nothing spills; else k doubled until nothing spills, then the least such k; the fastest of those tried
    search      the fastest of the twelve largest divisors of P

A batch of n P samples can use the micro-batch of P samples, n times as often. With `no-spill` all of its
doublings are candidates (n a power of 2), and passes at least as large without spill for every n, so it is
not slower. Published runs support `largest`: GPT-J 6B at 120 samples and Llama 2 7B at 64 were as slow as if
their activations spilled. The vendor's default is a micro-batch that is "reasonable" and not always the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wse_sim.compiler.plan import Infeasible
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.rectangle import free_seconds

Attempted = WeightStreamingPlan | Infeasible
LEAST_GAIN = 5e-3  # least gain, as a fraction of the step time, for which a smaller micro-batch is chosen


def with_micro_batch(
    attempt: Callable[[int], Attempted], options: StreamingChoice, per_system: int
) -> Attempted:
    """Return the plan with the given micro-batch, or with the one that
    :attr:`StreamingChoice.choose_micro_batch` selects."""
    if options.micro_batch is not None:
        return attempt(min(options.micro_batch, per_system))
    if options.choose_micro_batch == "search":
        divisors = [d for d in range(1, per_system + 1) if per_system % d == 0][-12:]
        # Ties: the largest.
        return min((attempt(d) for d in reversed(divisors)), key=_seconds)
    largest, passes = _largest(attempt, per_system)
    if options.choose_micro_batch == "largest" or isinstance(largest, Infeasible):
        return largest
    if passes == 1 and not largest.spilled_bytes:
        return largest
    return _without_spill(largest, attempt, per_system, passes)


def _largest(attempt: Callable[[int], Attempted], per_system: int) -> tuple[Attempted, int]:
    """Return the plan with the fewest passes, of 1, 2, 4, ..., with which it fits, and these passes."""
    passes, found = 1, attempt(per_system)
    while isinstance(found, Infeasible) and passes < per_system:
        passes *= 2
        found = attempt(-(-per_system // passes))
    return found, passes


def _without_spill(
    largest: WeightStreamingPlan, attempt: Callable[[int], Attempted], per_system: int, passes: int
) -> WeightStreamingPlan:
    """Return the fastest of the largest micro-batch that fits and those with more passes or, if halves did
    not fit, fewer."""
    tried = {passes: largest}

    def rests(k: int) -> bool:
        """Return whether the activations of a micro-batch fit on the wafer."""
        found = attempt(-(-per_system // k))
        if isinstance(found, Infeasible):
            return False
        tried[k] = found
        return not found.spilled_bytes

    low, high = (passes, 2 * passes) if largest.spilled_bytes else (passes // 2, passes)
    while high > passes and high < 2 * per_system and not rests(high):
        low, high = high, 2 * high
    while high - low > 1 and high < 2 * per_system:  # at low the activations do not fit, at high they do
        middle = (low + high) // 2
        low, high = (low, middle) if rests(middle) else (middle, high)
    best = min(tried.values(), key=_seconds)
    gain = 1.0 - _seconds(best) / _seconds(largest)
    if gain < LEAST_GAIN:
        return largest
    note = (
        f"{best.micro_batches} micro-batches of {best.micro_batch} instead of {largest.micro_batches} of {largest.micro_batch}: "
        f"a step takes {100 * gain:.1f} % less time by the prices here; published runs show no such gain "
        "(--choose-micro-batch largest predicts them)"
    )
    return replace(best, notes=(*best.notes, note))


def _seconds(plan: Attempted) -> float:
    """Return the seconds of a step without host limits; infinite if nothing fits."""
    return float("inf") if isinstance(plan, Infeasible) else free_seconds(plan)
