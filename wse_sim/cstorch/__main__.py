"""``python -m wse_sim.cstorch TRAIN.py ...``: the runner without the command."""

from __future__ import annotations

import sys

import typer

from wse_sim.cstorch.options import CONTEXT, script_command
from wse_sim.errors import WseError


def main() -> None:
    """Run one script."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings=CONTEXT)(script_command)
    try:
        app()
    except WseError as fault:
        print(f"wse-sim: {fault}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
