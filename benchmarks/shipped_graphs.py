"""Captures the models in configs/models, and writes their kernel graphs into the package.

    python -m benchmarks.shipped_graphs            (four minutes of processor time)
    python -m benchmarks.shipped_graphs --check    say whether the sources have changed since

A graph that is equal to the one in the package is not written again. While the sources of the front end, the kernels or
the graph differ from those of the last capture, the package captures every model and does not use these graphs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from wse_sim import result_cache
from wse_sim.frontend import load_model, shipped_graphs, store
from wse_sim.frontend.lowering import Lowering
from wse_sim.frontend.parameters import model_names
from wse_sim.serialize import same


def main(arguments: Sequence[str] | None = None) -> int:
    """Capture all models, or say whether that is needed."""
    parser = argparse.ArgumentParser(prog="benchmarks.shipped_graphs", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="only compare the sources; status 1 if they changed"
    )
    options = parser.parse_args(arguments)
    sources = result_cache.sources(*store.SOURCES)
    if options.check:
        is_new = (
            shipped_graphs.SOURCES.is_file()
            and shipped_graphs.SOURCES.read_text(encoding="utf-8").strip() == sources
        )
        print(
            "the shipped graphs are up to date"
            if is_new
            else "the shipped graphs are older than the sources that make them"
        )
        return 0 if is_new else 1
    wanted = set()
    with result_cache.paused():
        for name in model_names():
            for training in (True, False):
                how = Lowering(training=training)
                graph = load_model(name, training=training)
                wanted.add(shipped_graphs.file_of(name, how))
                if (known := shipped_graphs.read(name, None, how)) is None or not same(known, graph):
                    shipped_graphs.write(name, graph, how)
                    print(f"written: {name}, {'training' if training else 'inference'}", flush=True)
    for file in {*shipped_graphs.FOLDER.glob("*.graph")} - wanted:
        file.unlink()
    shipped_graphs.SOURCES.write_text(f"{sources}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
