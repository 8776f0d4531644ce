"""Counts phrases that confuse newcomers in pages, docstrings and messages: the counts may only fall.

    python -m benchmarks.prose               counts, and whether one grew; part of `make lint`
    python -m benchmarks.prose --list anew   the places of one rule

Rules are phrases of translated English and private words that have a standard term, from `docs/words.md`; docstrings that are too
short to say anything, or begin with a verb that contradicts the function; and sentences of pages that are too long to follow.  Each rule names what to write instead.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = ("wse_sim", "kernels")
PAGES = ("README.md", "CONTRIBUTING.md", "docs", "examples")
LONG_SENTENCE_WORDS = 40
SHORT_DOCSTRING_WORDS = 3


@dataclass(frozen=True)
class Rule:
    """A pattern in text, what to write instead, and how many places are left."""

    name: str
    pattern: str
    instead: str
    left: int


RULES = (
    Rule("anew", r"\banew\b", "again, or recompute", 1),
    Rule("in whole", r"\bin whole\b(?! (?:words|pieces|cycles|nanoseconds))", "completely", 0),
    Rule("held against", r"\bheld against\b", "compared with, tested against", 0),
    Rule("work out again", r"\bwork(?:s|ed)? out (?:again|once more)\b", "recompute", 0),
    Rule("lies", r"\b(?:lies|lie|lay) (?:beside|on|in|at|behind|around|as)\b", "is on, is in", 0),
    Rule("stands", r"\bstands? (?:beside|in|on|at|for itself|here|there)\b", "is in, is on", 1),
    Rule("beside", r"\bbeside\b", "next to, besides, together with", 7),
    Rule("so many", r"\bso many\b", "that many, the number of", 3),
    Rule("the script of the host", r"\bscripts? of the host\b", "host script", 0),
    Rule("asked for", r"\bis asked (?:for|whether|which)\b", "requested", 1),
    Rule("elder", r"\belder\b", "older, deprecated", 0),
    Rule("in place of", r"\bin place of\b", "instead of", 0),
    Rule("goes on", r"\bgoes on\b", "continues", 0),
    Rule(
        "says what",
        r"\b(?:row|table|page|report|file|text|note|line|it|that|which) says (?:what|which|how|where|why)\b",
        "states, shows",
        0,
    ),
    Rule(
        "Of a",
        r"(?:^|[.;:] +)Of (?:an?|the|each|every|all|its|those) [^.]{3,60}, ",
        "subject and verb first",
        20,
    ),
    Rule("of which", r"\bof which\b", "whose, or two sentences", 18),
    Rule("of its own", r"\bof (?:its|their|your|one's|the user's) own\b", "its own X, a separate X", 26),
    Rule("work out", r"\bwork(?:s|ed|ing)? out\b", "compute", 0),
    Rule(
        "next to a time",
        r"\bnext to (?:the |a |those of |this )?(?:main thread|work|products?|sums?|pace|memory|plan|weights|cache|rows of a|engine|reference|numbers?)\b",
        "in addition to, during, compared with",
        0,
    ),
    Rule("verb not", r"\b(?:says|knows|needs|takes|gives|holds|reads) not\b", "does not", 0),
    Rule("holds no", r"\bholds? no\b", "contains no, has no", 5),
    Rule("about at the end", r", about[.:;,)]", "about N", 0),
    Rule("of today", r"\bof (?:today|before)\b", "today's, earlier", 0),
    Rule("whoever", r"\bwhoever\b", "the caller, the user, those who", 0),
    Rule(
        "note says",
        r"\b(?:row|table|page|report|file|note|option|plan|log|result|command|docstring|module|kernel|price|family|graph|mode)s? says?\b",
        "states, shows",
        0,
    ),
    Rule("any more", r"\bany ?more\b", "no longer", 0),
    Rule("by lot", r"\bby lot\b", "at random, by seed", 0),
    Rule("of all", r"\bof all (?:kernels|cores|stages|regions) together\b", "total", 0),
    Rule("stands for", r"\bstands? for\b", "represents, is", 13),
    Rule("was asked", r"\b(?:is|are|was|were) asked\b(?! for)", "requested", 0),
    Rule("the way from", r"\bthe way (?:from|to|around|back|home)\b", "the route, the path, the link", 1),
    Rule("what no", r"\b[Ww]hat (?:no|neither|nobody)\b", "parts without, others", 3),
    Rule("docstring Of", r"\A\s*(?-i:Of|As) (?!a result|long|soon)[^.]{3,}", "subject and verb first", 2),
    Rule("docstring What", r"\A\s*(?-i:What) [a-z]", "a noun: the cycles that, the options of", 11),
    Rule("side by side", r"\bside by side\b", "in parallel, next to each other", 8),
    Rule("in turn", r"\bin turn\b", "one after the other, round-robin", 2),
    Rule("at rest", r"\bat rest\b", "resident, stationary", 6),
    Rule(
        "cycles a word",
        r"\b(?:cycles?|words?|bytes|rows|wavelets|seconds) a (?:sample|cycle|word|row|core|token|step|second)\b",
        "per",
        16,
    ),
    Rule("in the mean", r"\bin the mean\b", "on average", 0),
    Rule("nobody", r"\bnobody\b", "no caller, no process", 10),
    Rule(
        "is no X",
        r"(?<!there )\b(?:is|are) no (?:text|number|folder|object|tensor|pointer|JSON|link|expression|artifact|exported|pattern|params|positive|configuration|stream|multiple|whole|program|array|window|table|placer|list|line|path|request|value|fault)\b",
        "is not a X",
        0,
    ),
    Rule("is none", r"\b(?<!there )(?:is|are) none\b(?! of)", "is invalid, is not one", 10),
    Rule("for ever", r"\bfor ever\b", "forever", 1),
    Rule("mended", r"\bmend(?:ed|s)?\b", "corrected, fixed, repaired", 1),
    Rule("does not read", r"\bdo(?:es)? not read;", "cannot be parsed", 0),
    Rule("only at the end", r"\bat (?:run|compile) time only\b|\bon wse[23] only\b", "only at run time", 0),
    Rule(
        "at least at the end",
        r"\bmust be [^.;]{1,20} at (?:least|most)(?:[.;:,)]|$)",
        "must be at least N",
        1,
    ),
    Rule("to the last bit", r"\bto the (?:last )?bit\b", "bit for bit", 0),
    Rule("what binds", r"\bwhat binds\b", "the bottleneck", 2),
    Rule("outside of", r"\boutside of\b", "outside", 1),
    Rule(
        "tell apart",
        r"\b(?:tells?|told) (?:\w+ ){0,3}apart\b|\btake(?:s|n)? (?:\w+ ){0,2}apart\b",
        "distinguish, decompose",
        1,
    ),
    Rule("hears", r"\bhears?\b", "receives", 3),
    Rule("are given", r", and (?:indices |arguments )?are given\b", "but N are given", 0),
    Rule("is impossible", r"\bis impossible[;:]", "is invalid, is out of range", 0),
    Rule(
        "two words", r"\b(?:check sums?|break points?|watch points?)\b", "checksum, breakpoint, watchpoint", 1
    ),
    Rule(
        "free way",
        r"\b(?:free|longer|shortest|other) ways?\b|\bways of (?:gradients|streams|words)\b",
        "route",
        2,
    ),
    Rule("by luck", r"\b(?:only|by) luck\b", "a race, undefined order", 2),
    Rule("stranger", r"\bstrangers?\b", "another person, untrusted", 1),
    Rule("whole number", r"\bwhole numbers?\b", "integer", 0),
    Rule("is through", r"\b(?:is|are|was) through\b", "is complete, has finished", 0),
    Rule("all else", r"\ball else\b", "everything else", 0),
    Rule("in a circle", r"\bin a circle\b", "a loop, recursively", 0),
    Rule("is told", r"\b(?:is|are|was) told\b", "is given, is reported", 2),
)


@functools.cache
def texts() -> tuple[tuple[str, int, str], ...]:
    """File, line and text of every docstring, message and paragraph."""
    return tuple(_texts())


def _texts() -> Iterator[tuple[str, int, str]]:
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _strings(path)
    for name in PAGES:
        at = ROOT / name
        for path in sorted(at.rglob("*.md")) if at.is_dir() else (at,):
            if not path.is_symlink():
                yield from _paragraphs(path)


def _strings(path: Path) -> Iterator[tuple[str, int, str]]:
    for node in _nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield _named(path), node.lineno, node.value


@functools.cache
def _nodes(path: Path) -> list[ast.AST]:
    """Return the constants, functions and classes of a file; the lint reads all files, so nothing else is kept."""
    found: list[ast.AST] = []
    open_nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while open_nodes:
        node = open_nodes.pop()
        if isinstance(node, ast.Constant | ast.FunctionDef | ast.ClassDef):
            found.append(node)
        for field in vars(node).values():
            if isinstance(field, list):
                open_nodes.extend(part for part in field if isinstance(part, ast.AST))
            elif isinstance(field, ast.AST):
                open_nodes.append(field)
    return found


def _paragraphs(path: Path) -> Iterator[tuple[str, int, str]]:
    text = re.sub(
        r"^```.*?^```",
        lambda m: "\n" * m[0].count("\n"),
        path.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    line = 1
    for part in re.split(r"(\n\s*\n)", text):
        if part.strip() and not part.startswith("    "):  # nor is an indented block of code prose
            yield _named(path), line, part
        line += part.count("\n")


def _named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def short_docstrings() -> list[tuple[str, int, str]]:
    """Return the docstrings of public functions and classes with three words or fewer."""
    found = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in _nodes(path):
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    text = ast.get_docstring(node) or ""
                    if text and len(text.split()) <= SHORT_DOCSTRING_WORDS:
                        found.append((_named(path), node.lineno, text))
    return found


def wrong_verbs() -> list[tuple[str, int, str]]:
    """Return docstrings whose first verb contradicts the type that the function returns."""
    found = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in _nodes(path):
                if not isinstance(node, ast.FunctionDef) or node.returns is None:
                    continue
                verb, kind = (ast.get_docstring(node) or "").partition(" ")[0], ast.unparse(node.returns)
                is_iterator = any(name in kind for name in ("Iterator", "Iterable", "Generator"))
                if (
                    (verb == "Yield" and not is_iterator)
                    or (verb == "Return" and kind == "None")
                    or (verb == "Print" and kind not in ("None", "int"))
                ):
                    found.append((_named(path), node.lineno, f"{verb} ... -> {kind}"))
    return found


def long_sentences() -> list[tuple[str, int, str]]:
    """Return the sentences of pages with more than forty words; tables and lists do not count."""
    found = []
    for file, line, text in texts():
        if not file.endswith(".md") or text.lstrip().startswith(("|", "<!--", "-", "*", "1.")):
            continue
        for sentence in re.split(r"(?<=[.!?:])\s+", text):
            if len(sentence.split()) > LONG_SENTENCE_WORDS and "|" not in sentence:
                found.append((file, line, " ".join(sentence.split())))
    return found


def places(rule: Rule) -> list[tuple[str, int, str]]:
    """Where the words of a rule are."""
    pattern = re.compile(rule.pattern, re.IGNORECASE)
    return [
        (
            file,
            line + text[: match.start()].count("\n"),
            text[max(0, match.start() - 30) : match.end() + 30].replace("\n", " "),
        )
        for file, line, text in texts()
        for match in pattern.finditer(text)
    ]


SHORT_LEFT = 99
LONG_LEFT = 1


def counted() -> list[tuple[str, list[tuple[str, int, str]], int, str]]:
    """Name, places, allowed number and remedy of every rule."""
    rows = [(rule.name, places(rule), rule.left, rule.instead) for rule in RULES]
    rows.append(("short docstrings", short_docstrings(), SHORT_LEFT, "a sentence with a verb"))
    rows.append(("wrong verbs", wrong_verbs(), 0, "the verb for what the function does"))
    rows.append(("long sentences", long_sentences(), LONG_LEFT, "two sentences"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print counts or places; 1 if a count grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="RULE")
    options = parser.parse_args(arguments)
    gc.disable()  # trees of 900 files are no garbage; looking through them takes 40 % of the time
    rows = counted()
    if options.list:
        for name, found, _, instead in rows:
            if name == options.list:
                print(f"write instead: {instead}")
                print("\n".join(f"{file}:{line}: {text}" for file, line, text in found))
        return 0
    grown = [(name, len(found), left, instead) for name, found, left, instead in rows if len(found) > left]
    for name, count, left, instead in grown:
        print(
            f"prose: '{name}' occurs {count} times, {left} are allowed; write: {instead} (python -m benchmarks.prose --list '{name}')"
        )
    fallen = [f"{name} {len(found)}" for name, found, left, _ in rows if len(found) < left]
    if fallen:
        print(
            f"prose: fewer places than allowed, lower the numbers in benchmarks/prose.py: {', '.join(fallen)}"
        )
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
