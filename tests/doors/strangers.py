"""Generators of malformed input for all entry points: every kind of file that a command reads, and the arguments of
every command.

A :class:`Door` makes cases: files to write, and a call.  Each case is drawn from a sound file or line by a change of one
of these kinds: bytes cut off, turned over or put in; words dropped, doubled, exchanged or replaced; fields of another
type, out of range, missing, doubled, or of no meaning; numbers in odd spellings.  Of some changes it is certain that no
reader may accept them (`must`); whatever else happens, the answer is one of :data:`ANSWERS`.

A door names the functions that read its files (`readers`).  Where these are broken on purpose (they crash where they
should refuse, or accept what they should refuse), :func:`campaign` must find faults: so each generator is seen to reach
what it claims (tests/doors/test_strangers.py).
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.doors.test_malformed import COMMAND, MOST_CPU_S, MOST_KIB, paths_in
from tests.doors.test_malformed_formats import ODD_WORDS, changed
from wse_sim import door
from wse_sim.errors import WseError

ANSWERS = ("answered", "refused", "does not fit")
Chance = random.Random
Call = Callable[[], object]


@dataclass
class Case:
    """Files by name, and their reader: the words of a command, or a call that raises a `WseError` if it refuses."""

    files: Mapping[str, bytes]
    words: Sequence[str] = ()
    call: Call | None = None
    must: bool = False  # be refused
    change: str = ""


@dataclass(frozen=True)
class Door:
    """One kind of input."""

    name: str
    count: int  # of cases in `make test-all`
    make: Callable[[Chance], Case]
    readers: tuple[str, ...]  # "module:function" that refuse what is malformed
    sound: Case  # that is answered


class Broken(BaseException):
    """The error of a reader that is broken on purpose; no code of ours takes it for damage of a file."""


@dataclass
class Tally:
    """Answers of one entry point by class, and faults in words."""

    answers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ANSWERS, 0))
    faults: list[str] = field(default_factory=list)


# What is done to a sound file


def cut(data: bytes, chance: Chance) -> bytes:
    """Return the beginning, or the whole without a piece."""
    at = chance.randrange(len(data) + 1)
    return data[:at] if chance.random() < 0.5 else data[:at] + data[at + chance.randrange(1, 40) :]


def stained(data: bytes, chance: Chance) -> bytes:
    """Return a few bytes turned over or put in."""
    made = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(made) + 1)
        if chance.random() < 0.5 and at < len(made):
            made[at] ^= 1 << chance.randrange(8)
        else:
            made[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
    return bytes(made)


RAW = (
    b"", b"\0", b"\xff\xfe\0", b"{", b"[", b"[" * 20_000, b"{a: " * 3000, b'{"a":' * 20_000, b"\x89PNG\r\n\x1a\n", b"a" * 300_000,
    b"name: \xe9", b"\x1f\x8b\x08\0", b"PK\x03\x04" + bytes(60), b"\x89HDF\r\n\x1a\n" + bytes(90), b"a: &a [*a]\n", b"9" * 9000,
    b"!!python/object/apply:os.system [id]\n", b"- 1\n- 2\n", b"a: b: c\n", b"\r\n" * 50, b'"', b"<<: *x\n", b"---\n---\n", b"null",
)  # fmt: skip
"""Bytes that are no file of any of these kinds."""


def reworded(data: bytes, chance: Chance) -> bytes:
    """Drop, double, exchange or replace one or two words."""
    ways = ("drop", "double", "swap", "odd")
    changes = [
        (chance.randrange(10**6), chance.choice(ways), chance.choice(ODD_WORDS))
        for _ in range(chance.choice((1, 2)))
    ]
    return changed(data.decode("utf-8", "surrogateescape"), changes).encode("utf-8", "surrogateescape")


ODD_TYPES: tuple[Any, ...] = ([], {}, [1, 2], {"a": 1}, "x", "", None, True, [[]], "\u0661")
ODD_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), float("-inf"), -1, 10**30, 0, 1e-300, -0.5)


def tree_changed(data: Any, chance: Chance, *, open_at: Sequence[str] = ()) -> tuple[Any, bool, str]:
    """Return a field of another type, out of range, missing or of no meaning; whether no reader may accept that.

    Below the keys `open_at` anything goes: other keys have a meaning there.
    """
    places = list(paths_in(data))
    place = chance.choice(places)
    made = copy.deepcopy(data)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    old, how = inner[place[-1]], chance.choice(("type", "number", "missing", "extra"))
    is_number = isinstance(old, int | float) and not isinstance(old, bool)
    is_open = any(key in open_at for key in place)
    if how == "missing":
        del inner[place[-1]]
        return made, False, how
    if how == "extra":
        inner["no_such_field"] = 1
        return made, not is_open, how
    new = chance.choice(ODD_NUMBERS if how == "number" else ODD_TYPES)
    inner[place[-1]] = new
    endless = isinstance(new, float) and new not in (1e-300, -0.5)
    return made, is_number and not is_open and (endless or isinstance(new, list | dict)), how


def twice(text: str, chance: Chance) -> str:
    """Return a line of YAML with a key, given twice."""
    lines = text.splitlines()
    keys = [
        n for n, line in enumerate(lines) if ": " in line and not line.lstrip().startswith(("-", "#", "{"))
    ]
    at = chance.choice(keys)
    return "\n".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]) + "\n"


def document(data: Any, chance: Chance, *, is_json: bool = False, open_at: Sequence[str] = ()) -> tuple[bytes, bool, str]:  # fmt: skip
    """Return a YAML or JSON file with one change; whether it must be refused, and what was changed."""

    def text(tree: Any) -> bytes:
        return (json.dumps(tree) if is_json else yaml.safe_dump(tree, sort_keys=False)).encode()

    how = chance.choice(("tree", "tree", "tree", "words", "cut", "stained", "raw", "twice"))
    if how == "tree":
        made, must, what = tree_changed(data, chance, open_at=open_at)
        return text(made), must, what
    if how == "raw":
        return chance.choice(RAW), True, how
    if how == "twice":
        if is_json:
            key = chance.choice(list(data))
            return text(data)[:-1] + f", {json.dumps(key)}: 1}}".encode(), True, how
        return twice(text(data).decode(), chance).encode(), True, how
    change = {"words": reworded, "cut": cut, "stained": stained}[how]
    return change(text(data), chance), False, how


def blob(data: bytes, chance: Chance) -> tuple[bytes, bool, str]:
    """Return a file of any other kind with one change."""
    how = chance.choice(("words", "cut", "stained", "raw"))
    if how == "raw":
        return chance.choice(RAW), True, how
    return {"words": reworded, "cut": cut, "stained": stained}[how](data, chance), False, how


# How a case is answered


def spoken(words: Sequence[str]) -> tuple[int, str]:
    """Return status and standard error of one command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = door.run(COMMAND, list(words))
    return status, err.getvalue()


def answer(case: Case) -> str:
    """Return one of :data:`ANSWERS`, or a description of the wrong answer."""
    if case.call is not None:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                case.call()
        except WseError as refusal:
            return "refused" if len(str(refusal)) > 12 else f"no sentence: {refusal}"
        except (Exception, Broken) as fault:
            return f"{type(fault).__name__}: {fault}"
        return "answered"
    try:
        status, text = spoken(case.words)
    except Broken as fault:
        return f"Broken: {fault}"
    if Broken.__name__ in text:  # the command line takes what our readers raise here for a user's code
        return text
    if status == 0:
        return "answered"
    if status == 1:
        return "does not fit"
    # A note is no fault; below a fault in a program are its line and a caret, indented.
    lines = [line for line in text.strip().splitlines() if not line.startswith(("wse-sim: note: ", "    "))]
    is_sentence = len(lines) == 1 and lines[0].startswith("wse-sim: ") and 12 < len(lines[0]) < 1500
    return "refused" if status == 2 and is_sentence else f"status {status}: {text[-400:]}"


def fault_of(case: Case, folder: Path) -> tuple[str, str]:
    """Return the answer to a case, and what is wrong with it ("" if nothing is)."""
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    before = set(folder.rglob("*"))
    began, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = answer(case)
    if found not in ANSWERS:
        return found, found
    if time.process_time() - began > MOST_CPU_S:
        return found, "takes long"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held > MOST_KIB:
        return found, "takes memory"
    if case.must and found != "refused":
        return found, f"is {found}, must be refused"
    left = {path for path in set(folder.rglob("*")) - before if "__pycache__" not in path.parts}
    return found, f"left {sorted(left)}" if found == "refused" and left else ""


def campaign(door_: Door, folder: Path, count: int, seed: int = 0) -> Tally:
    """Run a number of cases of an entry point, the same ones for a seed, in the given folder."""
    chance, tally = random.Random(f"{door_.name} {seed}"), Tally()
    for number in range(count):
        case = door_.make(chance)
        found, wrong = fault_of(case, folder)
        if found in ANSWERS:
            tally.answers[found] += 1
        if wrong:
            tally.faults.append(f"{door_.name} {number} ({case.change}) {' '.join(case.words)[:80]}: {wrong}")
    return tally
