"""Runs a program of one core on the simulated machine and reads its variables."""

from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.csl import CompiledProgram, compile_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

LAYOUT = """
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{});
}
"""
TYPES = {
    "i16": np.int16,
    "u16": np.uint16,
    "i32": np.int32,
    "u32": np.uint32,
    "f32": np.float32,
    "f16": np.float16,
}
TYPES |= {
    "bool": np.uint16,
    "i8": np.int16,
    "u8": np.uint16,
    "i64": np.int64,
    "u64": np.uint64,
    "i5": np.int16,
    "u24": np.uint32,
}


def compile_text(
    folder: Path,
    text: str,
    layout: str = LAYOUT,
    arch: str = "wse2",
    *,
    memcpy: bool = False,
    **files: str,
) -> CompiledProgram:
    """Compile a program of one core given as text; `files` are further ones by name without extension."""
    (folder / "layout.csl").write_text(layout)
    (folder / "pe.csl").write_text(text)
    for name, other in files.items():
        (folder / f"{name}.csl").write_text(other)
    return compile_program(folder / "layout.csl", arch=arch, memcpy=memcpy)


class Machine:
    """A session on a compiled program."""

    def __init__(self, program: CompiledProgram, executor: str = "fast") -> None:
        self.program = program
        wafer = load_wafer(program.options.arch)
        self.session = Session(program.image, wafer, executor=executor)  # type: ignore[arg-type]

    def call(self, name: str, *args: int) -> int:
        """Run an exported function to its end; cycles it took."""
        start = self.session.cycle
        self.session.launch(0, 0, 1, 1, name, args, arm=False)
        outcome = self.session.advance()
        assert outcome.reason == "idle", outcome
        return self.session.cycle - start

    def read(self, name: str) -> Any:
        """An exported variable as a numpy array."""
        symbol = {s.name: s for s in self.program.image.classes[0].symbols}[name]
        element = symbol.type.rsplit("]", 1)[-1]
        return self.session.peek(0, 0, symbol.address, symbol.words).view(TYPES[element])
