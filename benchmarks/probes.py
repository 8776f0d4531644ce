"""Measures the fraction of a model's cycles that programs measured, and their ratio to the formulas.

    python -m benchmarks.probes [--only TEXT] [--keep]

Every model is compiled, its probes run on the fabric with nothing kept from before, and the plan is simulated with both.
``--keep`` puts the rows into ``docs/measured.json``, from which the page of the kernels is written.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from benchmarks import measurements
from wse_sim import api
from wse_sim.compiler.plan import Infeasible

if TYPE_CHECKING:
    import torch

STREAMING = "weight-streaming"
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-small": ("gpt2-small", {"mode": "pipelined"}),
    "gpt2-small, streamed": ("gpt2-small", {"mode": STREAMING}),
    "bert-large": ("bert-large", {"mode": "pipelined"}),
    "bert-large, streamed": ("bert-large", {"mode": STREAMING}),
    "resnet50": ("resnet50", {"mode": "pipelined"}),
    "resnet50, streamed": ("resnet50", {"mode": STREAMING}),
    "gpt3-175b, 4 systems": (
        "gpt3-175b",
        {"mode": STREAMING, "batch": 64, "systems": 4, "seq": 2048},
    ),
    "mixtral-8x7b": ("mixtral-8x7b", {"mode": STREAMING, "batch": 16, "seq": 2048}),
    "LSTM, 2 layers of 1,024, 128 steps": ("benchmarks.probes:lstm", {"mode": "pipelined"}),
    "LSTM, streamed": ("benchmarks.probes:lstm", {"mode": STREAMING}),
    "gated cumulative sums, 4 layers of 1,024": ("benchmarks.probes:gated_sums", {"mode": "pipelined"}),
    "gated cumulative sums, streamed": ("benchmarks.probes:gated_sums", {"mode": STREAMING}),
    "llama2-7b inference": (
        "llama2-7b",
        {"mode": STREAMING, "batch": 16, "seq": 2048, "phase": "inference"},
    ),
}


def lstm() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Two layers of 1,024 units over 128 steps."""
    import torch

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.LSTM(1024, 1024, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)[0][:, -1].square().mean()  # type: ignore[no-any-return]

    return Last(), (torch.zeros(1, 128, 1024),)


def gated_sums() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Four layers of 1,024 features: a gate times values, summed along 256 steps."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value = torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.cumsum(torch.sigmoid(self.gate(x)) * self.value(x), dim=1)

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(Layer() for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).square().mean()  # type: ignore[no-any-return]

    return Layers(), (torch.zeros(1, 256, 1024),)


def row(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """One model on one plan, by formulas and by programs."""
    given = {"batch": 112, **options}
    result = api.run(model, **given)
    if isinstance(result, Infeasible):
        return {"mode": given["mode"], "batch": given["batch"], "binding": result.binding}
    began = time.process_time()
    timed = api.run_timed(result.plan, model=result, cache="none")
    cpu_s = time.process_time() - began
    rows = (*timed.report.rows, *timed.report.model_only)
    return {
        "mode": given["mode"],
        "batch": given["batch"],
        "measured": timed.report.measured_fraction,
        "probes": timed.report.probes,
        "cpu_s": round(cpu_s, 1),
        "cycles": sum(r.fabric_cycles for r in rows) / sum(r.model_cycles for r in rows) - 1.0,
        "rate": timed.fabric.samples_per_s / timed.model.samples_per_s - 1.0,
        "binding": str(timed.fabric.binding),
    }


def main() -> None:
    """Print a line of JSON for every model."""
    parser = argparse.ArgumentParser(prog="benchmarks.probes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="models whose label holds this text")
    parser.add_argument("--keep", action="store_true", help="put the rows into docs/measured.json")
    chosen = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for label, run in RUNS.items():
        if chosen.only not in label:
            continue
        found[label] = row(*run)
        print(json.dumps({label: found[label]}), flush=True)
        if chosen.keep:
            measurements.keep("probes", found, "process CPU time, one thread, beside other jobs on two cores")


if __name__ == "__main__":
    main()
