"""A fabric program of a few lines: y = 2 x + y on every core of a small rectangle.

python examples/a_fabric_program.py
"""

import numpy as np

from wse_sim.fabric.format.builder import scalar
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.lines import new_builder

ROWS, COLS, LENGTH = 2, 3, 8


def main() -> None:
    """Build, run, read."""
    builder = new_builder(ROWS, COLS, load_wafer("wse2"))
    x, y = builder.buffer("x", LENGTH, bank=0), builder.buffer("y", LENGTH, bank=2)
    core = builder.core_class("core")
    core.fmac(y.dsd(), y.dsd(), x.dsd(), scalar(2.0))
    builder.place(core, None)
    values = np.arange(ROWS * COLS * LENGTH, dtype=np.float32).reshape(ROWS, COLS, LENGTH)
    result = run_program(builder.build(), builder.config, inputs={"x": values, "y": np.ones_like(values)})
    print(f"{result.cycles} cycles on {ROWS} x {COLS} cores, executor {result.executor}")
    print(f"busy cycles per core:\n{result.busy}")
    print(f"north-west core: {result.read('y')[0, 0]}")


if __name__ == "__main__":
    main()
