"""Measures of training scripts as JSON: ``python -m benchmarks.cstorch``.

CPU time of one thread.  `replay` compares a replayed step with an eager step of the same model and clipping, with the
interface's optimizer and with torch's own (plain), all in this process; `recording` the seconds of a capture per 1,000 operators; `compile_only`
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
from typing import Any

SIZES = {"gpt2-small": (12, 768, 12, 50257, 1024, 112), "gpt-13b": (40, 5120, 40, 50257, 2048, 8)}


def model_of(layers: int, width: int, heads: int, vocab: int, seq: int) -> Any:
    """A GPT as users write it."""
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


def stepped(kind: str, sizes: tuple[int, ...], batch: int, steps: int) -> dict[str, float]:
    """Median CPU seconds of a step under one backend; seconds and operators of the capture."""
    import torch

    from wse_sim import cstorch
    from wse_sim.cstorch import runtime
    from wse_sim.cstorch import step as steps_of

    runtime.reset()
    steps_of.prepare = lambda run, program, seconds: None  # the clients' side alone
    cstorch.backend(kind)
    torch.manual_seed(0)
    model = cstorch.compile(model_of(*sizes))
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=1e-3)

    @cstorch.trace
    def step(ids: torch.Tensor) -> torch.Tensor:
        loss = model(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    execution = runtime.begin_execution(None, num_steps=steps)
    ids = torch.randint(0, sizes[3], (batch, sizes[4]))
    times = []
    for _ in range(steps):
        fed = execution.feed((ids,))
        start = time.process_time()
        step(*fed)
        times.append(time.process_time() - start)
        execution.end_step()
    execution.finish()
    out = {"step_ms": 1e3 * statistics.median(times[3:])}
    if kind == "CSX":
        program = next(iter(step.programs.values()))
        out |= {"capture_s": times[0], "operators": program.operators}
    return out


def plain(sizes: tuple[int, ...], batch: int, steps: int) -> float:
    """Median CPU milliseconds of a step of PyTorch alone, with its own AdamW."""
    import torch

    torch.manual_seed(0)
    model = model_of(*sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, sizes[3], (batch, sizes[4]))
    times = []
    for _ in range(steps):
        start = time.process_time()
        model(ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times[3:])


def replay(name: str, sizes: tuple[int, ...], batch: int, steps: int) -> dict[str, float]:
    """Replay against eager, and the cost of recording."""
    plain_ms = plain(sizes, batch, steps)
    eager, replayed = stepped("CPU", sizes, batch, steps), stepped("CSX", sizes, batch, steps)
    return {
        "plain_ms": plain_ms,
        "eager_ms": eager["step_ms"],
        "replay_ms": replayed["step_ms"],
        "overhead": replayed["step_ms"] / eager["step_ms"] - 1,
        "overhead_over_plain": replayed["step_ms"] / plain_ms - 1,
        "recording_s_per_1000_operators": 1000 * replayed["capture_s"] / replayed["operators"],
    }


def plan_only(name: str) -> None:
    """Plan a model of :data:`SIZES` under compile_only; prints its parameters and step."""
    import torch

    from wse_sim import cstorch
    from wse_sim.cstorch import runtime

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

    execution = runtime.begin_execution(None)
    step(*execution.feed((torch.zeros(batch, sizes[4], dtype=torch.long),)))
    execution.finish()
    made = runtime.run().compiled[0]
    print(json.dumps({"parameters": made.graph.parameters, "step_ms": 1e3 * made.step_s, "mode": made.mode}))


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
        "peak_gbytes_of_children": after.ru_maxrss / 1e6,
        **json.loads(done.stdout.splitlines()[-1]),
    }


def main() -> None:
    """Print all measures."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--plan", help="plan one model and stop")
    cli.add_argument("--large", action="store_true", help="the model of 13 B parameters too")
    cli.add_argument("folder", nargs="?")
    args = cli.parse_args()
    if args.plan:
        plan_only(args.plan)
        return
    import torch

    torch.set_num_threads(1)
    out: dict[str, Any] = {
        "replay of 10 ms": replay("small", (2, 64, 4, 512, 64), 6, 40),
        "replay of 100 ms": replay("medium", (2, 64, 4, 512, 64), 48, 15),
        "compile_only gpt2-small": compile_only("gpt2-small"),
    }
    if args.large:
        out["compile_only gpt-13b"] = compile_only("gpt-13b")
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
