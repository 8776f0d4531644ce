"""Measures the cost of an answer: CPU seconds and memory of complete commands, with an empty cache and once more.

    python -m benchmarks.command_cost [NAME ...] [--keep WHERE]

Each command is its own process with a cache folder of its own; JSON on standard output, one line per command.
"first" fills the cache, "again" finds the graph and the plan there; "parts" are CPU seconds by ``--timings``.  The compiled
kernels of numba are not part of that cache and should be there: run a command once before measuring after a change.

CPU seconds grow on a machine that others load, up to twofold.  "loop_s" are those of a fixed loop of Python at the same
time: divide by it to compare two measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks import measurements

QUESTIONS = {
    "gpt2-small": ["run", "gpt2-small", "--mode", "pipelined", "--batch", "112"],
    "resnet50": ["run", "resnet50", "--mode", "pipelined", "--batch", "112"],
    "gpt3-175b": ["run", "gpt3-175b", "--mode", "weight-streaming", "--systems", "64", "--batch", "64"],
    "show": ["show", "model", "gpt2-small"],
}
LIMIT_S = 1200.0  # by the clock, of one command
LOOPS = 5_000_000
_PART = re.compile(r"^ {0,2}(\w.*?)  +(\d+\.\d\d)(?:  +\d+\.\d\d)?$", re.MULTILINE)


def loop_s() -> float:
    """Return the CPU seconds of a fixed loop, which measure how fast this machine is now."""
    began, total = time.process_time(), 0
    for number in range(LOOPS):
        total += number
    return time.process_time() - began


def cost(command: Sequence[str], cache: str) -> dict[str, object]:
    """Return CPU seconds, in total and by part, and the peak memory (bytes) of one command."""
    timings = ["--timings"] if command[0] == "run" else []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "wse_sim.cli", *command, *timings],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "WSE_SIM_CACHE": cache},
        )
        end = time.monotonic() + LIMIT_S
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                process.kill()
            time.sleep(0.05)
        _, status, used = ended
        output.seek(0)
        text = output.read()
    if status:
        raise SystemExit(
            f"wse-sim {' '.join(command)} failed with status {os.waitstatus_to_exitcode(status)}"
        )
    parts = {name: float(cpu) for name, cpu in _PART.findall(text.rpartition("\npart ")[2])}
    return {
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "bytes": used.ru_maxrss * 1024,
        **({"parts": parts} if timings else {}),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the named questions."""
    parser = argparse.ArgumentParser(prog="benchmarks.command_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*QUESTIONS, []], help="questions; all unless given")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write docs/measured.json; WHERE names machine and load"
    )
    options = parser.parse_args(arguments)
    for name in options.names or QUESTIONS:
        loops = [loop_s()]
        with tempfile.TemporaryDirectory() as cache:
            first, again = (cost(QUESTIONS[name], cache) for _ in range(2))
        loops.append(loop_s())
        row = {"first": first, "again": again, "loop_s": round(sum(loops) / 2, 3)}
        print(json.dumps({"question": name, **row}), flush=True)
        if options.keep:
            measurements.keep("answers", {name: row}, options.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
