"""Finds pictures and measured tables whose sources changed after they were made.

    python -m benchmarks.stale              name them; part of make numbers-check
    python -m benchmarks.stale --made NAME  note that NAME was made from the sources as they are now

``docs/digests.json`` holds a digest of each source of every picture of the gallery and of every entry of
``docs/measured.json``.  ``docs/pictures/make.py`` and the benchmarks with ``--keep`` note what they make.

A source is a file, a folder (all its Python, CSL and YAML files), a function (``docs/pictures/make.py:gpt2``) or golden numbers
(``numbers:models/gpt2-small, training, pipelined``).  Golden numbers stand for the whole simulator: tests compare them with
what it answers, so a picture of a run is out of date if they or its drawing code changed.  Values that do not depend on a
clock have golden numbers as sources; times have the code that takes the time.  Comments, docstrings, imports, what a
raised fault says and sentences (notes, messages, help) do not count; in code that draws, sentences do.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "digests.json"
NUMBERS = "numbers:"
GROWING = ("fabric", "generation", "models", "plans")
"""Groups of golden numbers in which a new run changes nothing that was made before."""

_GPT2 = ("numbers:models/gpt2-small, training, pipelined", "numbers:plans/gpt2-small")
_MAPS = (
    "wse_sim/report/heatmap.py",
    "wse_sim/report/bottleneck.py",
    "wse_sim/report/views.py",
    "docs/pictures/make.py:gpt2",
)
_PAGE = (
    "wse_sim/report/html.py",
    "wse_sim/report/data.py",
    *(
        f"wse_sim/report/templates/{name}"
        for name in ("report.html.j2", "report.js", "report.css", "timeline.js")
    ),
)
_EXECUTORS = ("wse_sim/fabric/executors", "wse_sim/fabric/run.py")
_SIMULATOR = ("numbers:models", "numbers:plans")
_PLACERS = ("wse_sim/compiler/placers", "wse_sim/compiler/contest.py")
_WHOLE = ("wse_sim/whole", "numbers:fabric")
_CSL = ("wse_sim/csl/lower.py", "wse_sim/csl/layout.py", "wse_sim/csl/link.py", "wse_sim/fabric/vm")
_DECODER = ("wse_sim/report/heatmap.py", "docs/pictures/make.py:decoder", "examples/csl_decoder")
_SERVED = (
    *(f"wse_sim/serving/{name}.py" for name in ("workload", "scheduler", "fast_engine", "metrics")),
    "numbers:generation",
)
_ROUTES = tuple(
    f"wse_sim/compiler/{name}.py" for name in ("routing", "routing_kernels", "coloring", "streams")
)
_PARTS = tuple(f"wse_sim/modes/weight_streaming/{name}.py" for name in ("rectangle", "micro_batch", "lanes"))
_STUDIES = (
    *(f"wse_sim/studies/{name}.py" for name in ("evaluate", "study_plan", "settings", "pool", "store")),
    "wse_sim/uncertainty/spread.py",
    "wse_sim/modes/weight_streaming",
)

DRAWS = ("docs/pictures", "wse_sim/report", "wse_sim/studies/plots.py")
"""Code whose sentences are seen in a picture."""
SENTENCE_WORDS = 3
CHEAP = (
    "baselines",
    "contest_published",
    "pictures/gpt2_compute.png",
    "pictures/gpt2_filling.png",
    "pictures/gpt2_links.png",
    "pictures/gpt2_report.png",
    "pictures/llama_links.png",
    "pictures/random_models.png",
    "pictures/reduce_cores.png",
    "pictures/reduce_links.png",
    "pictures/report_read.png",
    "pictures/serving_report.png",
    "pictures/wafers_for_users.png",
)
"""What takes less than two minutes of CPU to make: a test fails where one of them is out of date."""

SOURCES: dict[str, tuple[str, ...]] = {
    "pictures/decoder_cores.png": _DECODER,
    "pictures/decoder_links.png": _DECODER,
    "pictures/gpt2_compute.png": (*_MAPS, *_GPT2),
    "pictures/gpt2_filling.png": (*_MAPS, *_GPT2),
    "pictures/gpt2_links.png": (*_MAPS, *_GPT2),
    "pictures/gpt2_report.png": (*_PAGE, "docs/pictures/make.py:gpt2", *_GPT2),
    "pictures/report_read.png": (*_PAGE, "docs/pictures/make.py:gpt2", *_GPT2),
    "pictures/llama_links.png": (
        "wse_sim/report/heatmap.py",
        "wse_sim/report/bottleneck.py",
        "docs/pictures/make.py:llama",
        "numbers:models/llama2-7b, training, weight-streaming",
    ),
    "pictures/placements.png": (
        "wse_sim/report/placements.py",
        "docs/pictures/make.py:place",
        *_PLACERS,
        *_GPT2,
    ),
    "pictures/random_models.png": ("docs/pictures/make.py:random_models", "measured:random_models"),
    "pictures/reduce_cores.png": (
        "wse_sim/report/heatmap.py",
        "docs/pictures/make.py:reduce",
        "kernels/families/collectives/reduce2d.py",
    ),
    "pictures/reduce_links.png": (
        "wse_sim/report/heatmap.py",
        "docs/pictures/make.py:reduce",
        "kernels/families/collectives/reduce2d.py",
    ),
    "pictures/serving_report.png": (
        "wse_sim/report/serving_page.py",
        *(f"wse_sim/report/templates/serving.{kind}" for kind in ("html.j2", "css", "js")),
        "docs/pictures/make.py:serving",
        *_SERVED,
        "numbers:generation",
    ),
    "pictures/wafers_for_users.png": (
        "wse_sim/studies/plots.py",
        "docs/pictures/make.py:wafers",
        "examples/studies/wafers_for_users.yaml",
        *_SERVED,
        "numbers:generation",
    ),
    "pictures/whole_training.gif": ("docs/pictures/make.py:film", *_WHOLE),
    "answers": ("benchmarks/command_cost.py", "wse_sim/frontend", "wse_sim/compiler"),
    "baselines": ("benchmarks/baselines.py", "wse_sim/baselines.py", "wse_sim/suites", "numbers:models"),
    "contest": ("benchmarks/placement.py", *_PLACERS),
    "contest_published": ("benchmarks/placement.py", "wse_sim/compiler/contest.py"),
    "contest_weighted": ("benchmarks/placement.py", *_PLACERS),
    "csl_decoder": ("benchmarks/csl_decoder.py", "examples/csl_decoder", *_CSL),
    "csl_scripts": _CSL,
    "csl_speed": ("benchmarks/csl.py", *_CSL),
    "csl_debugger": ("benchmarks/csl.py", *_CSL),
    "cstorch": (
        "benchmarks/cstorch.py",
        *(f"wse_sim/cstorch/{name}.py" for name in ("capture", "record", "simulated", "step")),
    ),
    "dead_cores": (
        "benchmarks/placement_comparison.py",
        "wse_sim/compiler/defects.py",
        *_PLACERS,
        *_SIMULATOR,
    ),
    "fabric": ("benchmarks/fabric.py", *_EXECUTORS),
    "fabric_gpu": ("benchmarks/fabric_gpu.py", "wse_sim/fabric/executors/gpu"),
    "fabric_memory": ("benchmarks/fabric_memory.py", *_EXECUTORS),
    "fabric_peer": ("benchmarks/fabric_peer.py", *_EXECUTORS),
    "fidelity": ("benchmarks/fidelity.py", "numbers:fabric"),
    "fitted": (
        "benchmarks/leave_one_out.py",
        "benchmarks/fits.py",
        "benchmarks/validation",
        "numbers:validation",
    ),
    "gpu": ("benchmarks/gpu.py", "wse_sim/fabric/executors/gpu"),
    "grids": ("benchmarks/grids.py", "numbers:generation", "numbers:validation"),
    "intervals": ("benchmarks/coverage.py", "wse_sim/uncertainty", "configs/wafers", "numbers:validation"),
    "kills": ("benchmarks/kills.py", "wse_sim/atomic_files.py", "wse_sim/child_processes.py"),
    "links": ("benchmarks/placement_comparison.py", *_ROUTES, "numbers:plans"),
    "never_slower": ("benchmarks/never_slower.py", *_PARTS, "numbers:models"),
    "placers": ("benchmarks/placement_comparison.py", *_PLACERS, *_GPT2),
    "probes": ("benchmarks/probes.py", "wse_sim/timing", "numbers:fabric"),
    "random_models": ("benchmarks/random_models.py", "benchmarks/drawn_models.py", *_WHOLE),
    "strangers": ("benchmarks/strangers.py", "wse_sim/errors.py", "wse_sim/files.py"),
    "studies": ("benchmarks/studies.py", *_STUDIES),
    "study_examples": (
        "benchmarks/study_examples.py",
        "examples/studies",
        "numbers:models",
        "numbers:generation",
    ),
    "whole_fabric": ("benchmarks/whole_fabric.py", *_WHOLE),
}
"""What each picture and each measured entry depends on."""


Digests = dict[str, str]  # by source


def digest(name: str, root: Path = ROOT) -> Digests:
    """Digest of every source of a picture or an entry.

    Raises
    ------
    ValueError
        If a source does not exist.
    """
    return {source: value(source, root) for source in SOURCES[name]}


def value(source: str, root: Path = ROOT) -> str:
    """Digest of a source; of a group of golden numbers that grows, one of each run."""
    text = _text(source, root)
    if source.removeprefix(NUMBERS) in GROWING:
        return " ".join(sorted(_hash(run)[:6] for run in text.splitlines()))
    return _hash(text)[:12]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@lru_cache(maxsize=256)
def _text(source: str, root: Path) -> str:
    kind, _, key = source.partition(":")
    if kind == "numbers":
        found = json.loads((root / "docs" / "numbers.json").read_text(encoding="utf-8"))["groups"]
        group, _, run = key.partition("/")
        numbers = found[group]["numbers"]
        if run:
            return json.dumps(numbers[run], sort_keys=True)
        return "\n".join(json.dumps([name, numbers[name]], sort_keys=True) for name in sorted(numbers))
    if kind == "measured":
        found = json.loads((root / "docs" / "measured.json").read_text(encoding="utf-8"))
        return json.dumps(found[key]["values"], sort_keys=True)
    at = root / kind
    if key:
        return _without_prose(_function(at.read_text(encoding="utf-8"), key), has_sentences=_draws(kind))
    if not at.exists():
        raise ValueError(f"source {source} does not exist; correct SOURCES in benchmarks/stale.py")
    files = ((file, file.relative_to(root).as_posix()) for file in _files(at))
    return "".join(f"{name}\n{_read(file, has_sentences=_draws(name))}" for file, name in files)


def _draws(name: str) -> bool:
    return name.startswith(DRAWS)


def _files(at: Path) -> Iterator[Path]:
    kinds = {".py", ".csl", ".yaml", ".j2", ".js", ".css"}
    yield from [at] if at.is_file() else sorted(file for file in at.rglob("*") if file.suffix in kinds)


def _read(file: Path, *, has_sentences: bool) -> str:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".yaml":
        return "\n".join(
            line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")
        )
    return _without_prose(text, has_sentences=has_sentences) if file.suffix == ".py" else text


def _function(text: str, name: str) -> str:
    found = next(
        node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return ast.get_source_segment(text, found) or ""


def _without_prose(text: str, *, has_sentences: bool) -> str:
    """Return the lines of a program without docstrings, comments, imports, what a raised fault says, blank lines, and
    sentences if asked.

    Equal for every version of Python.
    """
    kept = _without_comments(text)
    lines: list[str] = (kept if has_sentences else _without_sentences(kept)).splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if (is_text and isinstance(node.value.value, str)) or isinstance(node, (ast.Import, ast.ImportFrom)):
            left = ""
        elif isinstance(node, ast.Raise) and node.exc is not None:
            left = f"raise {ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)}"
        else:
            continue
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        lines[first:last] = [left] + [""] * (last - first - 1)
    return "\n".join(line.strip() for line in lines if line.strip())


def _without_comments(text: str) -> str:
    """Return a program with empty comments; every line stays where it was."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    return "".join(lines)


def _without_sentences(text: str) -> str:
    """Return a program with empty texts of several words; a text with values is replaced by the expressions of its
    values.
    """
    lines = [line.encode() for line in text.splitlines()]
    found = [node for node in ast.walk(ast.parse(text)) if _is_sentence(node)]
    inner = {id(part) for node in found for part in ast.walk(node) if part is not node}
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if id(node) in inner:
            continue
        values = [ast.unparse(part.value) for part in ast.walk(node) if isinstance(part, ast.FormattedValue)]
        head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        lines[first : last + 1] = [head + repr(" ".join(values)).encode() + tail]
    return "\n".join(line.decode() for line in lines)


def _is_sentence(node: ast.AST) -> TypeGuard[ast.JoinedStr | ast.Constant]:
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return len(" ".join(map(str, parts)).split()) >= SENTENCE_WORDS
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text and len(str(node.value).split()) >= SENTENCE_WORDS


def read() -> dict[str, Digests]:
    """Return the file: digests by source, by name."""
    found: dict[str, Digests] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def made(names: Iterable[str]) -> None:
    """Record that these were made from the current sources."""
    _text.cache_clear()
    kept = {**read(), **{name: digest(name) for name in names}}
    FILE.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n", encoding="utf-8")


def changed(name: str) -> list[str]:
    """Return the sources of a picture or an entry that changed after it was made; all of them if it was not noted."""
    found = read().get(name)
    kept = found if isinstance(found, dict) else {}  # one digest of all sources, as earlier files had
    return [source for source, now in digest(name).items() if not _is_same(source, kept.get(source, ""), now)]


def _is_same(source: str, kept: str, now: str) -> bool:
    if source.removeprefix(NUMBERS) in GROWING:
        return bool(kept) and set(kept.split()) <= set(now.split())
    return kept == now


def out_of_date() -> list[str]:
    """Return the names of what was made from other sources."""
    return [name for name in SOURCES if changed(name)]


def remedy(name: str) -> str:
    """Return the command that makes it again."""
    if name.startswith("pictures/"):
        part = next(
            (s.partition(":")[2] for s in SOURCES[name] if s.startswith("docs/pictures/make.py:")), ""
        )
        return f"python docs/pictures/make.py {part}"
    command: str = json.loads((ROOT / "docs" / "measured.json").read_text(encoding="utf-8"))[name]["command"]
    return command


def main(arguments: list[str] | None = None) -> int:
    """Print what is out of date with the command that makes it again; 1 if anything is."""
    parser = argparse.ArgumentParser(prog="benchmarks.stale", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--made", nargs="+", metavar="NAME", choices=sorted(SOURCES), help="note these as made"
    )
    options = parser.parse_args(arguments)
    if options.made:
        made(options.made)
        return 0
    names = out_of_date()
    for name in names:
        print(f"{name}: {', '.join(changed(name))} changed after it was made; run: {remedy(name)}")
    print(f"{len(SOURCES) - len(names)} of {len(SOURCES)} pictures and measured tables are of these sources")
    return int(bool(names))


if __name__ == "__main__":
    sys.exit(main())
