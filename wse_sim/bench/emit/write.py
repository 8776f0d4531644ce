"""The files of a kernel in CSL: layout, PE programs, script, data, command files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.atomic_files import together
from wse_sim.bench.emit.layout import layout_text
from wse_sim.bench.emit.pe import pe_text, source_of
from wse_sim.bench.emit.script import SCRIPT, values_of
from wse_sim.bench.emit.source import PeSource
from wse_sim.errors import KernelError
from wse_sim.files import claim_folder
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Case


def stamp_difference(wafer: Wafer, arch: str) -> int:
    """Cycles that a kernel's start counts on WSE-2 beyond those of its CSL: the published runs behind it took their time stamps with <debug>.

    Such a stamp is a call; one of <time>, which the CSL takes, is written out.  The start of WSE-3 was measured with <time>.
    """
    if arch != "wse2":
        return 0
    costs = wafer.scalar_costs()
    return costs["trace"] + costs["call"] + costs["return"] - costs["tsc"]


def write_csl(name: str, given: Mapping[str, Any], case: Case, folder: Path) -> list[Path]:
    """Write a kernel's program in CSL into `folder`: layout, PE programs, script, data, command files; the files written.

    Raises
    ------
    KernelError
        If the program holds something that cannot be written in CSL.
    """
    program = case.program
    if program.west or program.east:
        raise KernelError(
            f"kernel '{name}' streams from host columns; only programs whose data begin and end in memory can be written in CSL"
        )
    if program.rows * program.cols > 4096:
        raise KernelError(
            f"kernel '{name}' on {program.rows} x {program.cols} cores is too large to be written as readable CSL; use at most 4,096 cores"
        )
    about = (
        f"Kernel {name} of wse-sim, {', '.join(f'{k}={v}' for k, v in given.items()) or 'default parameters'}"
    )
    files: dict[int, tuple[str, PeSource]] = {}
    texts: dict[str, str] = {}
    for core_class in sorted({int(c) for c in program.core_class} - {0}):
        source = source_of(program, name, core_class)
        text = pe_text(source, about)
        file = texts.setdefault(text, f"pe_{len(texts)}.csl")
        files[core_class] = (file, source)
    if (program.core_class == 0).any():
        raise KernelError(f"kernel '{name}' leaves cores without a program; give it a full rectangle")
    claim_folder(folder)
    written = {
        "layout.csl": layout_text(program, about, files),
        **{file: text for text, file in texts.items()},
    }
    written["run.py"] = SCRIPT.format(
        about=about, cols=program.cols, rows=program.rows, tolerance=float(case.tolerance)
    )
    for arch in ("wse2", "wse3"):
        written[f"commands_{arch}.sh"] = (
            f"#!/usr/bin/env bash\n\nset -e\n\ncslc --arch={arch} ./layout.csl --fabric-dims={program.cols + 7},{program.rows + 2} "
            "--fabric-offsets=4,1 -o out --memcpy --channels=1\ncs_python run.py --name out\n"
        )
    buffer = io.BytesIO()
    np.savez(buffer, **values_of(case))  # type: ignore[arg-type]
    with together(folder) as part:
        for file, text in written.items():
            (part / file).write_text(text, encoding="utf-8")
        (part / "data.npz").write_bytes(buffer.getvalue())
    return [folder / file for file in (*written, "data.npz")]
