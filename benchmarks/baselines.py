"""Compares published runs of other machines with simulated CS-2 systems.

    python -m benchmarks.baselines [--series gpt2-series] [--keep]

``--keep`` puts the rows into ``docs/measured.json``, from which the table of the page is written.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks import measurements
from wse_sim import baselines

WAFER, CLUSTER = "wse2", "default"


def main() -> None:
    """Print the rows as text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--series", default="all")
    parser.add_argument("--keep", action="store_true", help="put the rows into docs/measured.json")
    options = parser.parse_args()
    rows = baselines.compare_baselines(
        options.series, wafer=WAFER, cluster=CLUSTER, progress=lambda text: print(text, file=sys.stderr)
    )
    print(baselines.table(rows))
    if options.keep:
        labels = {key: row["label"] for key, row in measurements.read("baselines")["values"].items()}
        values = {
            row.id: {
                "label": labels.get(row.id, row.id),
                "tokens_per_s": round(row.tokens_per_s),
                "mfu": row.mfu,
                "systems": row.systems,
                "system_tokens_per_s": round(row.system_tokens_per_s),
                "system_mfu": row.system_mfu,
                "devices_per_system": row.devices_per_system
                if row.systems == 1 and row.devices == 1
                else None,
            }
            for row in rows
        }
        measurements.keep("baselines", values, f"wafer {WAFER}, cluster {CLUSTER}")


if __name__ == "__main__":
    main()
