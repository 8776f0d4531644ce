"""Parts that the subcommands share: progress on standard error, JSON on standard output, options."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.errors import WseError
from wse_sim.options import Declared, RunOptions, option

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]


class Screen(Declared):
    """Options for what a command prints, and where."""

    as_json: bool = option(False, "Print JSON to standard output.", flag="--json")
    quiet: bool = option(False, "Do not print progress.", flag="--quiet -q")
    strict: bool = option(False, "Treat an option without effect as an error.", flag="--strict")
    timings: bool = option(False, "Print to standard error where the command spent its time.")


def print_json(data: object) -> None:
    """Write one JSON document; numbers that are not finite become null."""
    print(json.dumps(_clean(data), indent=2, sort_keys=False))


def _clean(data: object) -> object:
    if isinstance(data, dict):
        return {str(key): _clean(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_clean(item) for item in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if hasattr(data, "item") and not isinstance(data, str | bytes):
        return _clean(data.item())
    return data


def console() -> Console:
    """Standard output for tables: colors on a terminal, plain text of 80 columns in a pipe."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=80, no_color=True, highlight=False)


EVERY_S = 5.0
"""Seconds between lines of progress in a file or a pipe; what ends before has none."""


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a callable that states which step is at work, on standard error: a line that changes on a terminal.

    In a file or a pipe it is a line every :data:`EVERY_S` seconds, so that long compiles show that they live; nothing if `quiet`.
    """
    if quiet:
        yield lambda text: None
        return
    if not sys.stderr.isatty():
        with _lines() as say:
            yield say
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("start") as status:
        yield status.update


@contextmanager
def _lines() -> Iterator[Callable[[str], None]]:
    """Return lines of progress from a thread that wakes at intervals."""
    begun, over, at = time.monotonic(), threading.Event(), ["start"]

    def tell() -> None:
        while not over.wait(EVERY_S):
            line = f"wse-sim: {at[0]} ({time.monotonic() - begun:.0f} s)"
            with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full
                print(line, file=sys.stderr, flush=True)

    def say(text: str) -> None:
        at[0] = text

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield say
    finally:
        over.set()
        thread.join()


def say_without_effect(lines: list[str], strict: bool) -> None:
    """Name the options that have no effect here, on standard error.

    Raises
    ------
    WseError
        If `strict` and there is one.
    """
    if lines and strict:
        raise WseError(f"{lines[0]}; leave it out, or run without --strict")
    for line in lines:
        print(f"wse-sim: note: {' '.join(line.split())}", file=sys.stderr)  # a value may hold ends of lines


def unused(given: Declared, names: Iterable[str], why: str) -> list[str]:
    """Return the options among `names` that differ from their default and have no effect here, one line each."""
    fields, chosen = type(given).model_fields, frozenset(names)
    return [
        f"{option.flag.split()[0]} has no effect {why}"
        for option in type(given).options()
        if option.name in chosen and getattr(given, option.name) != fields[option.name].default
    ]


def all_but(kind: type[Declared], *names: str) -> list[str]:
    """Return the names of all options of a declaration but some."""
    return [option.name for option in kind.options() if option.name not in names]


def without_effect(model: str | None, options: RunOptions) -> list[str]:
    """Return the options of a run that were given but have no effect, one line each."""
    from wse_sim.frontend import takes_sequence

    found = []
    if options.seq is not None and model is not None and not takes_sequence(model):
        found.append(f"--seq {options.seq} has no effect: a sample of {model} is not a sequence")
    if options.systems > options.batch:
        idle = options.systems - options.batch
        found.append(
            f"--systems {options.systems} is more than --batch {options.batch}: {idle} of them get no sample"
        )
    if options.seed and not (options.jitter or options.skew) and not getattr(options, "check_values", False):
        found.append(f"--seed {options.seed} has no effect without --jitter or --skew")
    if options.skew and options.systems == 1:
        found.append(f"--skew {options.skew} has no effect with one system")
    if options.cache is not None and getattr(options, "timing", "model") == "model":
        found.append("--cache has no effect with --timing model")
    default = RunOptions.model_fields["checkpoint_gbytes_per_s"].default
    if options.checkpoint_steps is None and options.checkpoint_gbytes_per_s != default:
        found.append("--checkpoint-gbytes-per-s has no effect without --checkpoint-steps")
    if options.lora_on is not None and options.lora is None:
        found.append(f"--lora-on {options.lora_on} has no effect without --lora")
    if options.phase == "inference":
        for name in ("train", "lora"):
            if getattr(options, name) is not None:
                found.append(f"--{name} {getattr(options, name)} has no effect with --phase inference")
        if options.checkpoint_steps is not None:
            found.append("--checkpoint-steps has no effect with --phase inference")
        if options.optimizer != RunOptions.model_fields["optimizer"].default:
            found.append(f"--optimizer {options.optimizer} has no effect with --phase inference")
    return found


def one_of(value: str, allowed: tuple[str, ...], name: str) -> str:
    """`value` if it is allowed.

    Raises
    ------
    WseError
        One sentence otherwise.
    """
    if value not in allowed:
        raise WseError(f"--{name} {value} is unknown; use one of {', '.join(allowed)}")
    return value
