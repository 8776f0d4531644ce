"""Runs the studies of ``examples/studies``: the best setting at each value of one parameter.

python -m benchmarks.study_examples --only decode          print
python -m benchmarks.study_examples --keep WHERE           write the entry of docs/measured.json (minutes of CPU)
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import yaml

from benchmarks import measurements
from wse_sim.studies import labels
from wse_sim.studies.data import better
from wse_sim.studies.evaluate import DONE
from wse_sim.studies.study import study

FOLDER = Path(__file__).parents[1] / "examples" / "studies"
ACROSS = {"sram_or_cores": "wafer.sram_bytes", "batch_and_systems": "systems", "decode": "seq"}
"""Studies, and the parameter at whose values the best setting is listed."""


def best(name: str) -> list[measurements.Row]:
    """Return, at each value of the parameter, the best setting with its first output and interval, or why there is
    none.
    """
    asked = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        rows = study(asked, out=Path(folder) / name).frame().to_dict("records")
    across, output = ACROSS[name], asked["outputs"][0]
    sign = -1 if better(output) == "minimize" else 1
    lines = []
    for value in dict.fromkeys(row[across] for row in rows):
        own = [row for row in rows if row[across] == value]
        done = [row for row in own if row["status"] == DONE]
        line: measurements.Row = {"at": labels.setting(across, value)}
        if done:
            top = max(done, key=lambda row: sign * row[output])
            rest = [key for key in asked["grid"] if key != across]
            line["setting"] = ", ".join(labels.setting(key, top[key]) for key in rest)
            line |= {"value": top[output], "low": top[f"{output}.low"], "high": top[f"{output}.high"]}
            line |= {"unit": labels.unit_of(output), "binds": top["binding"]}
        else:
            line["why"] = own[0]["binding"] or own[0]["status"]
        lines.append(line)
    return lines


def main() -> None:
    """Run the studies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=ACROSS, help="one study")
    parser.add_argument(
        "--keep", metavar="WHERE", help="write docs/measured.json; WHERE describes the machine"
    )
    asked = parser.parse_args()
    values = {name: best(name) for name in ACROSS if asked.only in (None, name)}
    print(json.dumps(values, indent=1))
    if asked.keep:
        measurements.keep("study_examples", values, asked.keep)


if __name__ == "__main__":
    main()
