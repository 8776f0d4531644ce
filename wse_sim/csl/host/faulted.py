"""Message of a run-time fault with its place, source line and a caret, in the format of compile errors."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from wse_sim.csl.diagnostics import pointed
from wse_sim.fabric.vm.report import Fault


def told_fault(fault: Fault | None, cycle: int, folder: Path | None = None) -> str:
    """Return the message of a fault, followed by ``file:line:column``, the source line and a caret.

    Sources are searched relative to the working folder and to the parent of `folder`, the output folder of
    the compiler. A source that is newer than that output is not shown, because its lines may have changed.
    """
    said = f"the program faulted at cycle {cycle}: {fault}"
    if fault is None or fault.place is None:
        return said
    file, line, column = fault.place
    text = _source(file, folder)
    rows = [] if text is None else text.split("\n")
    shown = pointed(rows[line - 1], column) if 0 < line <= len(rows) else ""
    return f"{said}\n  {file}:{line}:{column}{shown}"


def _source(file: str, folder: Path | None) -> str | None:
    """Return the text of a source as it was compiled, or None if it cannot be read or has changed since."""
    try:
        if file.startswith("<"):
            return (resources.files("wse_sim.csl") / "lib" / f"{file[1:-1]}.csl").read_text(encoding="utf-8")
        written = None if folder is None else (folder / "out.json").stat().st_mtime
        places = [Path(file)] if folder is None else [Path(file), folder.parent / file]
        path = next((p for p in places if p.is_file()), None)
        if path is None or (written is not None and path.stat().st_mtime > written):
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
