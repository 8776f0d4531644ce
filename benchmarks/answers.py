"""What an answer costs: CPU seconds and memory of whole commands, with an empty cache and once more.

    python -m benchmarks.answers [NAME ...]

Each command is its own process with a cache folder of its own; JSON on standard output, one line per command.
"first" fills the cache, "again" finds the graph and the plan there.  The compiled kernels of numba are not part of
that cache and should be there: run a command once before measuring after a change.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

QUESTIONS = {
    "gpt2-small": ["run", "gpt2-small", "--mode", "pipelined", "--batch", "112"],
    "resnet50": ["run", "resnet50", "--mode", "pipelined", "--batch", "112"],
    "gpt3-175b": ["run", "gpt3-175b", "--mode", "weight-streaming", "--systems", "64", "--batch", "64"],
    "show": ["show", "model", "gpt2-small"],
}


def cost(command: Sequence[str], cache: str) -> dict[str, float]:
    """CPU seconds and most memory (bytes) of one command."""
    silent = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", "wse_sim.cli", *command],
        stdout=silent,
        stderr=silent,
        env={**os.environ, "WSE_SIM_CACHE": cache},
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(
            f"wse-sim {' '.join(command)} failed with status {os.waitstatus_to_exitcode(status)}"
        )
    return {"cpu_s": round(used.ru_utime + used.ru_stime, 2), "bytes": used.ru_maxrss * 1024}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named questions."""
    parser = argparse.ArgumentParser(prog="benchmarks.answers", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*QUESTIONS, []], help="questions; all unless given")
    for name in parser.parse_args(arguments).names or QUESTIONS:
        with tempfile.TemporaryDirectory() as cache:
            first, again = (cost(QUESTIONS[name], cache) for _ in range(2))
        print(json.dumps({"question": name, "first": first, "again": again}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
