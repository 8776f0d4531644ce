"""Measures training scripts and prints JSON: ``python -m benchmarks.cstorch``.

CPU time of one thread.  `replay` compares a replayed step with a step of PyTorch alone (plain), in turn in one process; `recording` the seconds of a capture per 1,000 operators; `compile_only`
the wall seconds and the peak memory of a process that plans a model whose weights are never allocated.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks import measurements

if TYPE_CHECKING:
    import torch

SIZES = {"gpt2-small": (12, 768, 12, 50257, 1024, 112), "gpt-13b": (40, 5120, 40, 50257, 2048, 8)}


def model_of(layers: int, width: int, heads: int, vocab: int, seq: int) -> torch.nn.Module:
    """Return a GPT as users write it."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                z.unflatten(-1, (heads, width // heads)).transpose(1, 2)
                for z in self.qkv(self.norm1(x)).chunk(3, -1)
            )
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + self.proj(a)
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(seq, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), ids.flatten())

    return GPT()


def replay(sizes: tuple[int, ...], batch: int, steps: int) -> dict[str, float]:
    """Compare replay with PyTorch alone, alternating steps, and measure the cost of recording.

    Both train the same model with clipping, the script with the interface's AdamW, PyTorch with its own.
    """
    import torch

    from wse_sim import cstorch
    from wse_sim.cstorch import machine, runtime
    from wse_sim.cstorch import step as steps_of
    from wse_sim.cstorch.execution import begin_execution

    runtime.reset()
    steps_of.prepare = lambda run, program, seconds: None  # the client's side alone
    torch.manual_seed(0)
    alone = model_of(*sizes)
    alone_optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-3)
    cstorch.backend("CSX")
    torch.manual_seed(0)
    model = cstorch.compile(model_of(*sizes))
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    def plain(ids: torch.Tensor) -> None:
        alone(ids).backward()
        torch.nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        alone_optimizer.step()
        alone_optimizer.zero_grad()

    @cstorch.trace
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    execution = begin_execution(None, num_steps=steps)
    ids = torch.randint(0, sizes[3], (batch, sizes[4]))
    times: list[tuple[float, float]] = []
    for _ in range(steps):
        machine.leave_device()  # PyTorch alone pays for no mode of ours
        start = time.process_time()
        plain(ids)
        plain_s = time.process_time() - start
        machine.enter_device()
        fed = execution.feed((ids,))
        start = time.process_time()
        step(*fed)
        times.append((plain_s, time.process_time() - start))
        execution.end_step()
    execution.finish()
    program = next(iter(step.programs.values()))
    plain_ms, replay_ms = (1e3 * statistics.median(t[i] for t in times[3:]) for i in (0, 1))
    return {
        "plain_ms": plain_ms,
        "replay_ms": replay_ms,
        "overhead": statistics.median(b / a for a, b in times[3:]) - 1,
        "operators": program.operators,
        "recording_s_per_1000_operators": 1000 * times[0][1] / program.operators,
    }


def plan_only(name: str) -> None:
    """Plan a model of :data:`SIZES` under compile_only; prints its parameters and step."""
    import torch

    from wse_sim import cstorch
    from wse_sim.cstorch import runtime
    from wse_sim.cstorch.execution import begin_execution

    *sizes, batch = SIZES[name]
    backend = cstorch.backend("CSX", compile_only=True, artifact_dir=sys.argv[-1])
    with backend.device:
        model = model_of(*sizes)
    cstorch.compile(model, backend)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    @cstorch.trace
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    execution = begin_execution(None)
    step(*execution.feed((torch.zeros(batch, sizes[4], dtype=torch.long),)))
    execution.finish()
    made = runtime.run().compiled[0]
    facts = {"parameters": made.graph.parameters, "step_ms": 1e3 * made.step_s, "mode": made.mode}
    peak_gbytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({**facts, "peak_gbytes": peak_gbytes}))


def compile_only(name: str) -> dict[str, Any]:
    """Seconds and peak memory of a process that plans a model."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.cstorch", "--plan", name, folder],
            capture_output=True,
            text=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_s": time.monotonic() - start,
        "cpu_s": cpu,
        **json.loads(done.stdout.splitlines()[-1]),
    }


def main() -> None:
    """Print all measures."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--plan", help="plan one model and stop")
    cli.add_argument("--only-replay", action="store_true", help="no plans")
    cli.add_argument("--large", action="store_true", help="the model of 13 B parameters too")
    cli.add_argument(
        "--keep", metavar="WHERE", help="write the values into docs/measured.json, with the machine"
    )
    cli.add_argument("folder", nargs="?")
    args = cli.parse_args()
    if args.plan:
        plan_only(args.plan)
        return
    import torch

    torch.set_num_threads(1)
    out: dict[str, Any] = {
        "replay of 10 ms": replay((2, 64, 4, 512, 64), 6, 60),
        "replay of 100 ms": replay((2, 192, 4, 1024, 128), 1, 30),
    }
    if not args.only_replay:
        out["compile_only gpt2-small"] = compile_only("gpt2-small")
    if args.large:
        out["compile_only gpt-13b"] = compile_only("gpt-13b")
    print(json.dumps(out, indent=2))
    if args.keep:
        measurements.keep("cstorch", out, args.keep)


if __name__ == "__main__":
    main()
