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
from wse_sim.cli.strict_parser import StrictGroup
from wse_sim.cstorch import options as cstorch_options

MODELS, LOOK, KERNELS = "Models", "Inspect, and write reports again", "Kernels and placements"
STUDIES, SCRIPTS, CSL = "Studies, accuracy and sensitivity", "Training scripts", "Programs in CSL"

app = typer.Typer(
    name="wse-sim",
    cls=StrictGroup,
    help="Simulate PyTorch models and kernels on a wafer-scale engine.",
    epilog="Examples: wse-sim run gpt2-small --mode pipelined --out out/gpt2; wse-sim compare bert-large; "
    "wse-sim study STUDY.yaml --out out/study; wse-sim csl run commands.sh. 'wse-sim COMMAND --help' lists the options.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run", rich_help_panel=MODELS)(run.run_command)
app.command("compare", rich_help_panel=MODELS)(run.compare_command)
app.command("report", rich_help_panel=LOOK)(run.report_command)
app.command("doctor", rich_help_panel=MODELS)(doctor.doctor_command)
app.command("place", rich_help_panel=KERNELS)(place.place_command)
app.command("kernel", rich_help_panel=KERNELS)(kernel.kernel_command)
app.command("generate", rich_help_panel=MODELS)(generate.generate_command)
app.command("serve", rich_help_panel=MODELS)(serve.serve_command)
app.command("sensitivity", rich_help_panel=STUDIES)(certainty.sensitivity_command)
app.command("validate", rich_help_panel=STUDIES)(validate.validate_command)
app.command("script", context_settings=cstorch_options.CONTEXT, rich_help_panel=SCRIPTS)(
    cstorch_options.script_command
)
app.command("capture", rich_help_panel=SCRIPTS)(capture.capture_command)
app.command("cslc", context_settings=csl.RAW, rich_help_panel=CSL)(csl.cslc_command)
app.command("cs-python", context_settings=csl.RAW, rich_help_panel=CSL)(csl.cs_python_command)
app.add_typer(csl.app, name="csl", rich_help_panel=CSL)
app.add_typer(show.app, name="show", rich_help_panel=LOOK)
app.add_typer(study.app, name="study", rich_help_panel=STUDIES)


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
