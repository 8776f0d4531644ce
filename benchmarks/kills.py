"""Kills of every command that writes, at random moments: what it left must be whole, of this command or of the one before.

    python -m benchmarks.kills --kills 400 --keep      (about 20 minutes; writes the entry of docs/measured.json)

A command is run by a child of this process, which has the modules loaded, into a folder with an earlier result of the
same command for another setting.  The child is ended by SIGKILL, SIGTERM or SIGINT at a random moment between its start
and its end.  Then a reader comes (:func:`wse_sim.written.settle`), and every file must be that of one and the same
setting, byte by byte; files that differ between two runs of one setting are not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import measured

LAYOUT = """
param N: i16;
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .N = N });
}
"""
PE = """
param N: i16;
var values = @zeros([N]f32);
comptime { @export_symbol(values, "values"); }
"""
SUITE = """schema: 1
points:
- {id: a, system: wse2, mode: weight-streaming, model: fc-mnist, batch: %s, samples_per_s: 1000}
"""
COMMANDS: dict[str, str] = {
    "run": "run fc-mnist --mode weight-streaming --batch {} --out o",
    "run, pipelined": "run fc-mnist --mode pipelined --batch {} --out o --hta o/hta",
    "compare": "compare fc-mnist --batch {} --out o",
    "report": "report r{} --trace chrome",
    "place": "place fc-mnist --placers snake --batch {} --out o",
    "kernel --heatmap": "kernel reduce --rows 2 --cols {} --heatmap --out o",
    "kernel --emit": "kernel gemv --rows 2 --cols {} --emit csl o",
    "sensitivity": "sensitivity fc-mnist --mode weight-streaming --batch {} --out o",
    "generate": "generate small.yaml --batch {} --out o",
    "show model --graph": "show model fc-mnist --batch {} --graph o/g.svg",
    "cslc": "cslc layout.csl --fabric-dims=9,3 --fabric-offsets=4,1 --params=N:{} -o o",
}
"""Commands by name; the place of a number is filled with one of two settings."""

SETTINGS = ("4", "8")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
DECODER = "name: small\nsource: none\nmodel: {family: decoder, layers: 2, hidden: 64, heads: 2, ffn: 128, seq: 32, vocab: 128}\n"
Files = dict[str, str]


@dataclass
class Tally:
    """What the kills of one command did."""

    kills: int = 0
    writing: int = 0  # of them while it wrote
    earlier: int = 0  # left the earlier result
    later: int = 0  # left the new one
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0


def start(words: str, folder: Path) -> int:
    """Begin a command in a child; its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.chdir(folder)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        sys.argv = ["wse-sim", *words.split()]
        from wse_sim.door import main

        main()
    except SystemExit as end:
        os._exit(int(end.code or 0))
    except BaseException:
        os._exit(99)
    os._exit(0)


def ended(child: int) -> int:
    """Wait for a child; its status, below 0 for a signal."""
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


def files(folder: Path) -> Files:
    """Hashes of all files below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def prepared(folder: Path) -> None:
    """What the commands read."""
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(PE)
    (folder / "small.yaml").write_text(DECODER)
    for setting in SETTINGS:
        status = ended(
            start(f"run fc-mnist --mode weight-streaming --batch {setting} --out r{setting}", folder)
        )
        assert status == 0, status


def output(command: str, setting: str) -> str:
    """The folder that a command writes into."""
    return f"r{setting}" if command == "report" else "o"


def states(command: str, folder: Path) -> tuple[dict[str, Files], float]:
    """Files of each setting after a run that nothing ends, without those that differ from run to run; seconds."""
    found: dict[str, Files] = {}
    seconds = 0.0
    for setting in SETTINGS:
        seen: list[Files] = []
        for _ in range(2):
            out = folder / output(command, setting)
            if command != "report":
                shutil.rmtree(out, ignore_errors=True)
            out.mkdir(exist_ok=True)
            began = time.perf_counter()
            status = ended(start(COMMANDS[command].format(setting), folder))
            seconds = time.perf_counter() - began
            assert status == 0, (command, status)
            seen.append(files(out))
        found[setting] = {name: value for name, value in seen[0].items() if seen[1].get(name) == value}
        assert found[setting], command
    return found, seconds


def settled(out: Path) -> None:
    """What a reader does first; nothing in versions that do not know of it."""
    try:
        from wse_sim.written import settle
    except ImportError:
        return
    settle(out)


def one_kill(command: str, folder: Path, known: dict[str, Files], seconds: float, chance: random.Random) -> tuple[str, bool]:  # fmt: skip
    """Kill one command: the setting whose files are there ("" if of none or of several), and whether it was writing."""
    setting = chance.choice(SETTINGS)
    out = folder / output(command, setting)
    child = start(COMMANDS[command].format(setting), folder)
    time.sleep(chance.uniform(0.0, 1.05) * seconds)
    writing = any(path.name.startswith(".wse-sim-") for path in out.iterdir())
    with _gone():
        os.kill(child, chance.choice(SIGNALS))
    ended(child)
    settled(out)
    now = files(out)
    of = [
        name for name, state in known.items() if all(now.get(file) == value for file, value in state.items())
    ]
    odd = [name for name in now if Path(name).name.startswith(".")]
    return (of[0] if of and not odd else ""), writing


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def tally(command: str, kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill a command many times."""
    known, seconds = states(command, folder)
    found = Tally(seconds=seconds)
    for _ in range(kills):
        before = files(folder / "o") if command != "report" else {}
        left, writing = one_kill(command, folder, known, seconds, chance)
        found.kills += 1
        found.writing += writing
        if command == "report":
            found.later += bool(left)
        else:
            kept = all(before.get(name) == value for name, value in known.get(left, {}).items())
            found.earlier += bool(left) and kept
            found.later += bool(left) and not kept
        if not left:
            found.lost.append(command)
            for setting in SETTINGS:  # begin anew with a whole one
                ended(start(COMMANDS[command].format(setting), folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=len(COMMANDS) * 20, help="of all commands together")
    parser.add_argument("--only", nargs="*", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="write docs/measured.json")
    options = parser.parse_args()
    import torch  # noqa: F401  # once, for all children

    import wse_sim.api
    import wse_sim.cli
    import wse_sim.report.html  # noqa: F401

    chance, rows = random.Random(options.seed), {}
    for command in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            prepared(folder)
            found = tally(command, options.kills // len(options.only), folder, chance)
        rows[command] = {
            "kills": found.kills, "writing": found.writing, "earlier": found.earlier, "later": found.later,
            "lost": len(found.lost), "seconds": round(found.seconds, 2),
        }  # fmt: skip
        print(command, rows[command], flush=True)
    if options.keep:
        measured.keep("kills", rows, "SIGKILL (half), SIGTERM, SIGINT; commands as children, modules loaded")


if __name__ == "__main__":
    main()
