"""The commands of ``wse-sim``: doors to :mod:`wse_sim.api` and :mod:`wse_sim.report`; :mod:`wse_sim.door` runs one."""

from __future__ import annotations

import typer

from wse_sim._version import __version__
from wse_sim.cli import (
    capture,
    certainty,
    csl,
    doctor,
    generate,
    kernel,
    place,
    run,
    serve,
    show,
    study,
    validate,
)
from wse_sim.cli.strict import StrictGroup
from wse_sim.cstorch import options as cstorch_options

app = typer.Typer(
    name="wse-sim",
    cls=StrictGroup,
    help="Simulate PyTorch models and kernels on a wafer-scale engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run_command)
app.command("compare")(run.compare_command)
app.command("report")(run.report_command)
app.command("doctor")(doctor.doctor_command)
app.command("place")(place.place_command)
app.command("kernel")(kernel.kernel_command)
app.command("generate")(generate.generate_command)
app.command("serve")(serve.serve_command)
app.command("sensitivity")(certainty.sensitivity_command)
app.command("validate")(validate.validate_command)
app.command("script", context_settings=cstorch_options.CONTEXT)(cstorch_options.script_command)
app.command("capture")(capture.capture_command)
app.command("cslc", context_settings=csl.RAW)(csl.cslc_command)
app.command("cs-python", context_settings=csl.RAW)(csl.cs_python_command)
app.add_typer(csl.app, name="csl")
app.add_typer(show.app, name="show")
app.add_typer(study.app, name="study")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"wse-sim {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Simulate PyTorch models and kernels on a wafer-scale engine."""
