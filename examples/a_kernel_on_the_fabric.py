"""A sum along a row of cores: the closed form beside the program that ran.

python examples/a_kernel_on_the_fabric.py
"""

from wse_sim.bench.command import run_kernel
from wse_sim.hardware import load_wafer


def main() -> None:
    """A chain is best for long vectors, a star for short ones."""
    wafer = load_wafer("wse2")
    for words in (4, 256):
        for algorithm in ("star", "chain", "tree"):
            report = run_kernel("reduce", {"cores": 16, "words": words, "algorithm": algorithm}, wafer)
            print(
                f"{words:>4} words, {algorithm:<6} formula {report.model_cycles:>8,.0f} cycles, "
                f"program {report.fabric_cycles:>6,} cycles, values differ by {report.max_abs_error:.1g}"
            )


if __name__ == "__main__":
    main()
