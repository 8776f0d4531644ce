"""Settings of ``csl run --sanitize`` for every run of a command file, and its report.

If the environment names a file (:data:`SANITIZE_VARIABLE`), a run checks every access and word. When it ends,
successfully or not, it appends its findings to that file, one JSON object per line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm.findings import Finding
from wse_sim.fabric.vm.session import Session

SANITIZE_VARIABLE = "WSE_SIM_CSL_SANITIZE"
"""Environment variable with the file to which the sanitizer appends its findings; unset: the sanitizer is off."""
MOST_PRINTED = 40


def is_asked() -> bool:
    """Return whether the environment requests the sanitizer."""
    return bool(os.environ.get(SANITIZE_VARIABLE))


def keep_findings(session: Session, of_host: Iterable[Finding]) -> list[Finding]:
    """Append the findings of a run to the file that the environment names, and return them; empty without the
    sanitizer."""
    path = os.environ.get(SANITIZE_VARIABLE)
    if not path:
        return []
    found = [*session.findings(at_end=True), *of_host]
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(item.as_dict()) + "\n" for item in found)
    return found


def read_findings(path: Path) -> list[Finding]:
    """Return the findings of all runs that wrote to a file; empty if the file does not exist."""
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Finding(**row) for row in rows]


def findings_text(found: list[Finding]) -> str:
    """Format findings as lines for a terminal, one per finding; the last line is their number."""
    if not found:
        return "sanitizer: nothing found"
    lines = [
        f"{item.where}: {item.kind}: {str(item).removeprefix(item.where + ': ')}"
        for item in found[:MOST_PRINTED]
    ]
    if len(found) > MOST_PRINTED:
        lines.append(f"... and {len(found) - MOST_PRINTED} further places")
    return "\n".join([*lines, f"sanitizer: {len(found)} place{'s' * (len(found) != 1)}"])


def of_host(
    session: Session,
    name: str,
    region: tuple[int, int, int, int],
    chosen: npt.NDArray[np.bool_],
    address: int,
    words: int,
) -> list[Finding]:
    """Return the finding, if any, for words that the host copies from the `chosen` cores (h, w) of a region
    and that were never written."""
    x, y, _, _ = region
    cores = [core for core in session.unwritten(*region, address, words) if chosen[core[1] - y, core[0] - x]]
    if not cores:
        return []
    px, py, first = cores[0]
    text = f"the host copies word {first - address} of '{name}', which was never written"
    return [Finding("unwritten", f"memcpy_d2h of '{name}'", px, py, session.cycle, text, len(cores))]
