"""``wse-sim doctor``: lists all obstacles of a model."""

from __future__ import annotations

from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, print_json
from wse_sim.options import MOST_COUNT


def doctor_command(
    model: Annotated[
        str,
        typer.Argument(
            help="A model, as for wse-sim run, or a Python file, whose factories are all checked."
        ),
    ],
    batch: Annotated[int | None, typer.Option("--batch", min=1, max=MOST_COUNT, help="Samples.")] = None,
    seq: Annotated[
        int | None,
        typer.Option("--seq", min=1, max=MOST_COUNT, help="Sequence length of a sample."),
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="Check the training graph.")] = False,
    wafer: Annotated[str, typer.Option("--wafer", help="A wafer's name or YAML file.")] = "wse2",
    as_json: JsonOption = False,
) -> None:
    """Diagnose a model: every operation that is not supported or slow, with reason, remedy and fraction of
    the work."""
    from wse_sim.frontend import diagnose, named_models

    found = [
        diagnose(name, batch=batch, seq=seq, training=training, wafer=wafer) for name in named_models(model)
    ]
    if as_json:
        print_json(found[0].as_data() if len(found) == 1 else [one.as_data() for one in found])
    else:
        print("\n".join(line for one in found for line in one.lines()))
    if any(one.refused for one in found):
        raise typer.Exit(1)
