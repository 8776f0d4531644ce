"""Points of kernels and CSL programs that were timed on the user's machine.

`kernel` with `sizes` names a kernel of ``wse-sim kernel``; `program` a CSL program below the folder of --sources, without
which it is not run.  What was measured is `cycles`, or is read from

    stamps   an .npy file of time stamps as the host copied them: (..., 6) 16-bit words, or (..., 3) words of 32 bits
             with two of them each (float32 bits count as well), start before end, as <time> of CSL writes them
    output   what the host script printed: the pattern `program.printed` with a group for the number
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wse_sim.csl.timed import OVER, over_cores, stamps_of, timed_run
from wse_sim.errors import ConfigError
from wse_sim.files import Values, read_log, sha256_of
from wse_sim.validation.statement import FILE, Statement
from wse_sim.validation.suite import Point

WORDS = 6  # of start and end together


def kernel_point(stated: Statement, name: str, home: Path, wafer: str) -> Point:
    """Return the point of a kernel or a program.

    Raises
    ------
    ConfigError
        If nothing says what was measured, or it cannot be read.
    """
    if stated.kernel is not None and stated.program is not None:
        raise ConfigError(f"{home / FILE}: states `kernel` and `program`; keep one of them")
    program = dict(stated.program or {})
    if stated.program is not None:
        timed_run(program, name)
    cycles, how = _measured(stated, program, home)
    return Point(
        id=name,
        system=wafer,
        subject="csl.program" if stated.program is not None else f"kernel.{stated.kernel}",
        params={"program": program} if stated.program is not None else stated.sizes,
        quantity=stated.quantity,
        measured=cycles,
        unit="cycles" if stated.quantity == "cycles" else "",
        evidence=stated.evidence,
        source="; ".join(part for part in (stated.source, how, stated.release) if part),
        gate=stated.gate,
    )


def _measured(stated: Statement, program: Values, home: Path) -> tuple[float, str]:
    if stated.cycles is not None:
        return stated.cycles, f"stated in {FILE}"
    if stated.stamps is not None:
        file = home / stated.stamps
        over = str(program.get("over", OVER[0]))
        cycles = over_cores(*stamps_of(_words(file)), over)
        return _positive(
            cycles, file
        ), f"{over} of the time stamps in {stated.stamps}, sha256 {sha256_of(file)[:16]}"
    if stated.output is not None and program.get("printed"):
        file = home / stated.output
        try:
            found = re.search(str(program["printed"]), read_log(file))
        except re.error as fault:
            raise ConfigError(
                f"{home / FILE}: program.printed is not a pattern ({fault}); correct it"
            ) from None
        if found is None or not found.groups():
            raise ConfigError(
                f"{file}: prints nothing like '{program['printed']}' with a group for the number; correct program.printed"
            )
        try:
            value = float(found[1].replace(",", ""))
        except ValueError:
            value = math.nan
        return _positive(value, file), f"printed in {stated.output}, sha256 {sha256_of(file)[:16]}"
    raise ConfigError(
        f"{home / FILE}: does not state what was measured; add `cycles`, `stamps`, or `output` with program.printed"
    )


def _positive(value: float, file: Path) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(
            f"{file}: gives {value:g} cycles; a positive number is needed; is the end after the start?"
        )
    return value


def _words(file: Path) -> npt.NDArray[np.int64]:
    """Return (cores, 6) 16-bit words."""
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as fault:
        raise ConfigError(
            f"{file}: cannot be read as .npy ({' '.join(str(fault).split())[:100]}); write it by numpy.save"
        ) from None
    if not isinstance(found, np.ndarray) or found.ndim < 1 or not found.size:
        raise ConfigError(f"{file}: contains no time stamps; save the array that the host copied")
    if found.dtype == np.float32:
        found = found.view(np.uint32)
    if found.dtype.kind not in "ui" or found.shape[-1] not in (3, WORDS):
        raise ConfigError(
            f"{file}: has shape {found.shape} of {found.dtype}; (..., 6) words of 16 bits or (..., 3) of 32 bits are needed"
        )
    words = found.reshape(-1, found.shape[-1]).astype(np.int64)
    if found.shape[-1] == 3:
        words = np.stack([words & 0xFFFF, (words >> 16) & 0xFFFF], axis=-1).reshape(-1, WORDS)
    if words.min() < 0 or words.max() > 0xFFFF:
        raise ConfigError(
            f"{file}: holds words beyond 16 bits; save the array that the host copied, unchanged"
        )
    return words
