"""Kills every command that writes at random moments: its files must be complete, from this command or from the one
before.

    python -m benchmarks.kills --kills 400 --keep      (about 20 minutes; writes the entry of docs/measured.json)
    python -m benchmarks.kills --kills 12 --only serve study --keep      (some commands; the others keep their rows)

A command is run by a child of this process, which has the modules loaded, into a folder with an earlier result of the
same command for another setting.  The child is ended by SIGKILL, SIGTERM or SIGINT at a random moment: of every second
kill between its start and its end, of the others between its first file and its end.  Then a reader comes
(:func:`wse_sim.atomic_files.settle`), and every file must be that of one and the same setting, byte by byte; files that
differ between two runs of one setting are not compared.  Of a study the rows in its store are compared: none that was
there may go or change, and the study that is run to its end has the rows of one that nothing ended.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import measurements
from wse_sim.atomic_files import PREFIX, settle

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
- {id: a, system: wse2, subject: kernel.reduce, params: {cores: %s, words: 64}, quantity: cycles, measured: 100,
   unit: cycles, evidence: none, source: made up}
"""
STUDY = """
fixed: {model: fc-mnist, mode: weight-streaming, systems: %s}
grid: {batch: [16, 24, 32, 40, 48, 56]}
draws: 0
"""
SCRIPT = """
import sys
import torch
import cerebras.pytorch as cstorch
width = int(sys.argv[1])
def batches():
    draw = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(8, width, generator=draw), torch.zeros(8, dtype=torch.long)
torch.manual_seed(0)
backend = cstorch.backend("CSX", artifact_dir="made")
model = torch.nn.Linear(width, 3)
compiled = cstorch.compile(model, backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
@cstorch.trace
def step(x, y):
    loss = torch.nn.functional.cross_entropy(compiled(x), y)
    cstorch.amp.optimizer_step(loss, optimizer)
    return loss
for x, y in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(batches), num_steps=3, checkpoint_steps=3):
    step(x, y)
if len(sys.argv) > 2:
    cstorch.save({"model": model.state_dict()}, sys.argv[2])
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
    "serve": "serve small.yaml --requests {} --rate 100 --input 8 --output 4 --out o",
    "validate": "validate --data suite{}.yaml --timing model --out o",
    "csl run": "csl run c{}/commands_wse2.sh --report o",
    "script": "script --no-port --report o train.py {}",
    "script, checkpoint": "script --no-port train.py {} o/c.mdl",
    "study plot": "study plot s{}",
    "study export": "study export s{} --format csv",
    "study": "study study{}.yaml --out o --workers 0",
}
"""Commands by name; the place of a number is filled with one of two settings."""

INTO = {"report": "r", "study plot": "s", "study export": "s"}
"""Commands that write into what they read: its folder without the setting."""

SETTINGS = ("4", "8")
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
DECODER = "name: small\nsource: none\nmodel: {family: decoder, layers: 2, hidden: 64, heads: 2, ffn: 128, seq: 32, vocab: 128}\n"
Files = dict[str, str]


@dataclass
class Tally:
    """Counts the outcomes of the kills of one command."""

    kills: int = 0
    writing: int = 0  # of them while it wrote
    earlier: int = 0  # left the earlier result
    later: int = 0  # left the new one
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0


def start(words: str, folder: Path) -> int:
    """Start a command in a child process; return its number."""
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
    """Return the hashes of all files below a folder, without those of SQLite, which has its own transactions."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "sqlite" not in path.name
    }


def rows(folder: Path) -> Files:
    """Finished runs in the store of a study, by key."""
    if not (folder / "runs.sqlite").exists():
        return {}
    store = sqlite3.connect(folder / "runs.sqlite")
    try:
        return dict(store.execute("SELECT key, outputs FROM runs"))
    except sqlite3.OperationalError:  # killed before it had tables
        return {}
    finally:
        store.close()


def prepared(folder: Path) -> None:
    """Prepare the files that the commands read."""
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(PE)
    (folder / "small.yaml").write_text(DECODER)
    (folder / "train.py").write_text(SCRIPT)
    for setting in SETTINGS:
        (folder / f"suite{setting}.yaml").write_text(SUITE % setting)
        (folder / f"study{setting}.yaml").write_text(STUDY % setting)
        for words in (
            f"run fc-mnist --mode weight-streaming --batch {setting} --out r{setting}",
            f"kernel gemv --rows 2 --cols {setting} --emit csl c{setting}",
            f"study study{setting}.yaml --out s{setting} --workers 0",
        ):
            status = ended(start(words, folder))
            assert status == 0, (words, status)


def output(command: str, setting: str) -> str:
    """Return the folder that a command writes into."""
    return f"{INTO[command]}{setting}" if command in INTO else "o"


@dataclass
class Whole:
    """An uninterrupted command: its files for each setting, without those that differ from run to run, and its times."""

    files: dict[str, Files]
    begins_s: float  # its first file is there
    seconds: float


def states(command: str, folder: Path) -> Whole:
    """Return the files of an uninterrupted command."""
    found: dict[str, Files] = {}
    seconds = begins = 0.0
    for setting in SETTINGS:
        seen: list[Files] = []
        for _ in range(2):
            out = folder / output(command, setting)
            if command not in INTO:
                shutil.rmtree(out, ignore_errors=True)
            out.mkdir(exist_ok=True)
            began = time.perf_counter()
            child = start(COMMANDS[command].format(setting), folder)
            begins = _first_file(child, out, began)
            status = ended(child)
            seconds = time.perf_counter() - began
            assert status == 0, (command, status)
            seen.append(files(out))
        found[setting] = {name: value for name, value in seen[0].items() if seen[1].get(name) == value}
        assert found[setting] or command == "study", command
    return Whole(found, min(begins, seconds), seconds)


def _first_file(child: int, out: Path, began: float) -> float:
    """Seconds until a command begins to write."""
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and not is_writing(out):
        time.sleep(0.002)
    return time.perf_counter() - began


def is_writing(out: Path) -> bool:
    """Return whether files are on their way into a folder."""
    return any(path.name.startswith((PREFIX, "runs.sqlite-wal")) for path in out.iterdir())


def kill_at_random(command: str, setting: str, folder: Path, known: Whole, chance: random.Random) -> bool:
    """Start a command and end it; whether it was writing."""
    out = folder / output(command, setting)
    child = start(COMMANDS[command].format(setting), folder)
    earliest = chance.choice((0.0, known.begins_s))
    time.sleep(chance.uniform(earliest, 1.05 * known.seconds))
    writing = is_writing(out)
    with _gone():
        os.kill(child, chance.choice(SIGNALS))
    ended(child)
    return writing


def one_kill(command: str, folder: Path, known: Whole, chance: random.Random) -> tuple[str, bool]:
    """Kill one command; return the setting whose files exist ("" if of none or of several), and whether it was writing."""
    setting = chance.choice(SETTINGS)
    writing = kill_at_random(command, setting, folder, known, chance)
    out = folder / output(command, setting)
    settle(out)
    now = files(out)
    of = [
        name
        for name, state in known.files.items()
        if all(now.get(file) == value for file, value in state.items())
    ]
    odd = [name for name in now if Path(name).name.startswith(PREFIX)]
    if odd or not of:
        print(f"{command} {setting}: {described(now, known)}", flush=True)
    return (of[0] if of and not odd else ""), writing


def described(now: Files, known: Whole) -> str:
    """Describe which files exist for which setting, and which are missing or belong to none."""
    names = sorted({*now, *(name for state in known.files.values() for name in state)})
    parts = []
    for name in names:
        of = [
            setting
            for setting, state in known.files.items()
            if name in state and now.get(name) == state[name]
        ]
        compared = any(name in state for state in known.files.values())
        what = (
            "missing"
            if name not in now
            else "of " + " and ".join(of)
            if of
            else "of none"
            if compared
            else "not compared"
        )
        parts.append(f"{name} {what}")
    return "; ".join(parts)


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        return


def tally(command: str, kills: int, folder: Path, chance: random.Random) -> Tally:
    """Kill a command many times."""
    known = states(command, folder)
    if command == "study":
        return tally_of_study(kills, folder, known, chance)
    found = Tally(seconds=known.seconds)
    for _ in range(kills):
        before = files(folder / "o") if command not in INTO else {}
        left, writing = one_kill(command, folder, known, chance)
        found.kills += 1
        found.writing += writing
        kept = all(before.get(name) == value for name, value in known.files.get(left, {}).items())
        found.earlier += bool(left) and kept
        found.later += bool(left) and not kept
        if not left:
            found.lost.append(command)
            for setting in SETTINGS:  # begin again with a whole one
                ended(start(COMMANDS[command].format(setting), folder))
    return found


def tally_of_study(kills: int, folder: Path, known: Whole, chance: random.Random) -> Tally:
    """Kill studies on one store; once every row exists, start again with an empty store."""
    found, out = Tally(seconds=known.seconds), folder / "o"
    whole: Files = {}
    for setting in SETTINGS:
        whole |= rows(folder / f"s{setting}")
    for _ in range(kills):
        if len(rows(out)) == len(whole):
            shutil.rmtree(out)
            out.mkdir()
        before = rows(out)
        found.writing += kill_at_random("study", chance.choice(SETTINGS), folder, known, chance)
        now = rows(out)
        found.kills += 1
        is_lost = any(now.get(key) != value for key, value in before.items())
        is_lost |= any(whole.get(key) != value for key, value in now.items())
        found.earlier += not is_lost and len(now) == len(before)
        found.later += not is_lost and len(now) > len(before)
        found.lost += ["study"] * is_lost
    for setting in SETTINGS:
        assert ended(start(COMMANDS["study"].format(setting), folder)) == 0
    found.lost += ["study"] * (rows(out) != whole)
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

    chance, every = random.Random(options.seed), {}
    for command in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            prepared(folder)
            found = tally(command, options.kills // len(options.only), folder, chance)
        every[command] = {
            "kills": found.kills, "writing": found.writing, "earlier": found.earlier, "later": found.later,
            "lost": len(found.lost), "seconds": round(found.seconds, 2),
        }  # fmt: skip
        print(command, every[command], flush=True)
        if options.keep:
            measurements.keep(
                "kills", every, "SIGKILL (half), SIGTERM, SIGINT; commands as children, modules loaded"
            )


if __name__ == "__main__":
    main()
