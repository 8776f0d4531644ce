"""Measures the cost of a capture for a running job: CPU time of steps with and without a capture, in one run.

    python -m benchmarks.cstorch_capture [--steps 600]

Prints JSON: median CPU milliseconds of a step outside and inside of a capture and their ratio, CPU seconds to build the
answer, what that adds to the whole run, and whether the losses are those of a run without a capture.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time

import torch

from wse_sim import cstorch
from wse_sim.cstorch import runtime
from wse_sim.cstorch.monitor import capture


def loader(width: int, batch: int) -> torch.utils.data.DataLoader:
    x = torch.randn(64 * batch, width, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch
    )


def run(
    steps: int, width: int, captured: range | None, folder: str
) -> tuple[list[float], list[float], float]:
    """Return (losses, CPU seconds of each step, CPU seconds to build the answer) of one training run."""
    runtime.reset()
    backend = cstorch.backend("CSX", artifact_dir=folder)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[float] = []

    @cstorch.trace
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    @cstorch.step_closure
    def after(loss: torch.Tensor) -> None:
        losses.append(loss.item())

    wanted = None
    if captured is not None:
        wanted = capture.recorder.ask(len(captured), after=captured.start)
    times, start = [], time.process_time()
    data = cstorch.utils.data.DataLoader(loader, width, 32)
    for x, y in cstorch.utils.data.DataExecutor(data, num_steps=steps):
        after(step(x, y))
        now = time.process_time()
        times.append(now - start)
        start = now
    answer_s = 0.0
    if wanted is not None:
        start = time.process_time()
        json.dumps(capture.as_data(wanted))
        answer_s = time.process_time() - start
    return losses, times, answer_s


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--steps", type=int, default=600)
    cli.add_argument("--width", type=int, default=256)
    args = cli.parse_args()
    os.environ["WSE_SIM_NO_PORT"] = "1"
    torch.set_num_threads(1)
    inside = range(args.steps // 3, 2 * args.steps // 3)
    with tempfile.TemporaryDirectory() as folder:
        plain, _, _ = run(args.steps, args.width, None, folder)
        losses, times, answer_s = run(args.steps, args.width, inside, folder)
    # The first steps compile and warm up; the boundaries of the capture are left out.
    within = times[inside.start + 2 : inside.stop - 2]
    without = times[20 : inside.start] + times[inside.stop + 2 :]
    ratio = statistics.median(within) / statistics.median(without)
    whole = sum(times[20:])
    print(
        json.dumps(
            {
                "steps": args.steps,
                "captured_steps": len(inside),
                "step_cpu_ms": 1e3 * statistics.median(without),
                "step_cpu_ms_captured": 1e3 * statistics.median(within),
                "ratio": ratio,
                "answer_cpu_s": answer_s,
                "cost_of_run": (answer_s + (ratio - 1) * sum(within)) / whole,
                "losses_equal": losses == plain,
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
