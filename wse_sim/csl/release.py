"""Detection of the SDK release for which a program is written, for rules that differ between 1.4 and 2.10."""

from __future__ import annotations

import re
from pathlib import Path

NAMED = re.compile(r'@(?:import_module|set_tile_code)\s*\([^"]*"([^"<>]+)"')
COMMENT = re.compile(r"//[^\n]*")
OLDER = re.compile(r"\bcomptime_struct\b|@concat_structs\b")
INTEGER_PARAM = re.compile(r"^\s*param\s+(\w+)\s*:\s*[iu]\d+", re.MULTILINE)
MOST_FILES = 200


def release_of(path: str | Path) -> str:
    """Return "1.4" if the layout or a file that it names uses features of releases before 2.10
    (`comptime_struct`, `@concat_structs`), else "2.10"."""
    home = Path(path).parent
    waiting = [Path(path)]
    seen: set[Path] = set()
    while waiting and len(seen) < MOST_FILES:
        file = waiting.pop()
        key = file.resolve()
        if key in seen:
            continue
        seen.add(key)
        try:
            text = COMMENT.sub("", file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if OLDER.search(text):
            return "1.4"
        for name in NAMED.findall(text):
            places = [folder / f"{name}{end}" for folder in (file.parent, home) for end in ("", ".csl")]
            waiting += [p for p in places if p.is_file()][:1]
    return "2.10"


def integer_params(path: str | Path) -> set[str]:
    """Return the names of a file's integer parameters: a Python layout of 2.10 passes colors to these as
    numbers, one of 1.4 as colors."""
    file = Path(path)
    return set(INTEGER_PARAM.findall(file.read_text(encoding="utf-8"))) if file.is_file() else set()
