"""The command line ``wse-sim``: a door to :mod:`wse_sim.api` and :mod:`wse_sim.report`.

Exit status: 0 done; 1 the model does not fit (the result says what binds); 2 bad usage or input (one
line); 3 a fault of the simulator itself.
"""

from __future__ import annotations

import sys

import typer

from wse_sim._version import __version__
from wse_sim.cli import capture, csl, generate, kernel, place, run, show, validate
from wse_sim.cstorch import options as cstorch_options
from wse_sim.errors import WseError

app = typer.Typer(
    name="wse-sim",
    help="Simulate PyTorch models and kernels on a wafer-scale engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run_command)
app.command("compare")(run.compare_command)
app.command("report")(run.report_command)
app.command("place")(place.place_command)
app.command("kernel")(kernel.kernel_command)
app.command("generate")(generate.generate_command)
app.command("validate")(validate.validate_command)
app.command("script", context_settings=cstorch_options.CONTEXT)(cstorch_options.script_command)
app.command("capture")(capture.capture_command)
app.command("cslc", context_settings=csl.RAW)(csl.cslc_command)
app.command("cs-python", context_settings=csl.RAW)(csl.cs_python_command)
app.add_typer(csl.app, name="csl")
app.add_typer(show.app, name="show")


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


def main() -> None:
    """Run the command line and turn faults into exit statuses."""
    try:
        app()
    except WseError as fault:
        print(f"wse-sim: {fault}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as in `wse-sim show models | head`
        sys.exit(0)
    except Exception as fault:  # the outermost door: whatever is left is a fault of the simulator
        import os
        import traceback

        if os.environ.get("WSE_SIM_TRACEBACK"):
            traceback.print_exc()
        where = traceback.extract_tb(fault.__traceback__)[-1]
        print(
            f"wse-sim: fault of the simulator: {type(fault).__name__}: {fault} ({where.filename}:{where.lineno}); "
            "set WSE_SIM_TRACEBACK=1 for the trace and report it",
            file=sys.stderr,
        )
        sys.exit(3)
