"""Static memory map of every class of cores: code, variables, constants, frames, spare words, and the largest
symbols.

Frames are those of the deepest call chain, because functions that cannot be active together share memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from wse_sim.csl.compiler import CompiledProgram
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import Image

LARGEST = 8
LIMIT_BYTES = 2 * O.WORDS
FREE_WORDS = 16
"""Unused words at the start of the memory."""


@dataclass(frozen=True)
class ClassMemory:
    """Memory of one class of cores in bytes; ``deepest`` lists (function, bytes) of the call chain with the
    largest frames."""

    name: str
    cores: int
    code: int
    variables: int
    constants: int
    frames: int
    spare: int
    deepest: tuple[tuple[str, int], ...]
    symbols: tuple[tuple[str, str, int], ...]  # (name, type, bytes) of the largest variables

    def as_dict(self) -> dict[str, object]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def memory_map(image: Image) -> list[ClassMemory]:
    """Return the memory of every class of cores, the fullest class first."""
    cores = Counter(int(k) for k in np.asarray(image.core_class))
    found = []
    for k, cls in enumerate(image.classes):
        variables = {(s.address, s.words): s for s in cls.symbols if s.kind == "var"}
        largest = sorted(variables.values(), key=lambda s: (-s.words, s.address))[:LARGEST]
        code, data = 2 * cls.code_words, 2 * cls.data_words
        frames, constants = 2 * cls.frame_words, 2 * cls.constant_words
        rest = data - frames - constants - 2 * FREE_WORDS
        found.append(
            ClassMemory(
                cls.name.partition(":")[2] or cls.name,
                cores[k],
                code,
                rest,
                constants,
                frames,
                LIMIT_BYTES - code - data,
                tuple((name, 2 * words) for name, words in cls.deepest),
                tuple((s.name, s.type, 2 * s.words) for s in largest),
            )
        )
    return sorted(found, key=lambda row: (row.spare, row.name))


def memory_of_folder(folder: Path) -> list[ClassMemory]:
    """Return the memory map of the program in an output folder of ``cslc``.

    Raises
    ------
    WseError
        If the folder contains no compiled program.
    """
    return memory_map(CompiledProgram.read(folder).image)


def memory_text(rows: list[ClassMemory]) -> str:
    """Format a memory map as lines for a terminal."""
    lines = [
        f"{'class':<30} {'cores':>7} {'code':>7} {'vars':>7} {'consts':>7} {'frames':>7} {'spare':>7}  of {LIMIT_BYTES:,} bytes per core"
    ]
    for row in rows:
        numbers = " ".join(
            f"{n:>7,}" for n in (row.cores, row.code, row.variables, row.constants, row.frames, row.spare)
        )
        lines.append(f"{row.name[-30:]:<30} {numbers}  {100 * (1 - row.spare / LIMIT_BYTES):.1f} % full")
        if row.deepest:
            lines.append(
                f"    deepest frames  {' > '.join(f'{name} {size:,}' for name, size in row.deepest)}"
            )
        lines += [f"    {size:>7,}  {name}: {kind}" for name, kind, size in row.symbols if size]
    return "\n".join(lines)
