"""``wse-sim cslc``, ``cs-python`` and ``csl``: programs in CSL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wse_sim.cli.common import JsonOption, print_json
from wse_sim.cli.strict_parser import StrictGroup
from wse_sim.errors import WseError
from wse_sim.files import claim_folder, is_folder

RAW = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Threads that step the fabric.", min=1, max=1024)
]
SdkOption = Annotated[
    str | None,
    typer.Option(
        "--sdk", help="SDK release whose rules apply: 1.4 or 2.10 (default: detected from the sources)."
    ),
]
app = typer.Typer(cls=StrictGroup, help="Run programs in CSL on the simulated fabric.", no_args_is_help=True)


def cslc_command(context: typer.Context) -> None:
    """Compile a layout file: cslc LAYOUT.csl --arch wse2 --fabric-dims=8,3 --fabric-offsets=4,1 --params=N:4 -o out --memcpy."""
    from wse_sim.csl.host.commands import cslc

    cslc(list(context.args))


def cs_python_command(context: typer.Context) -> None:
    """Run a host script: cs-python run.py ARGUMENTS."""
    from wse_sim.csl.host.commands import cs_python

    raise typer.Exit(cs_python(list(context.args)))


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="A file with cslc and cs_python lines.")],
    report: Annotated[
        Path | None, typer.Option("--report", help="Folder for the page, maps and the profile.")
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds.", min=0.1, max=1e7)] = None,
    threads: ThreadsOption = None,
    static: Annotated[
        bool,
        typer.Option(
            "--static",
            help="Print what decides the course of the program, and the cycles of launches by the max-plus executor.",
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse programs that the language guide forbids.")
    ] = False,
    sdk: SdkOption = None,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Check every access and word; report after the run what is out of bounds, unwritten, shared, unread or decided by luck.",
        ),
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", help="Cores to trace: X,Y or X0:X1,Y0:Y1 (ends not included), several joined by +."
        ),
    ] = None,
    cycles: Annotated[
        str | None, typer.Option("--cycles", help="Cycles to trace, FIRST:END (0:10000).")
    ] = None,
    trace_out: Annotated[
        Path | None,
        typer.Option("--trace-out", help="Folder of the trace: timeline.json for Perfetto, sim.log (trace)."),
    ] = None,
) -> None:
    """Run a command file as it is, with our cslc and cs_python."""
    import subprocess

    from wse_sim.csl.host.commands import run_commands

    if report is not None:
        claim_folder(report, "--report")
    tracing = _trace_asked(trace, cycles, trace_out)
    try:
        done = run_commands(
            file,
            report=report,
            timeout_s=timeout,
            threads=threads,
            static=static,
            strict=strict,
            sdk=sdk,
            sanitize=sanitize,
            trace=tracing,
        )
    except subprocess.TimeoutExpired:
        raise WseError(f"{file} did not finish within {timeout:g} s; raise --timeout") from None
    raise typer.Exit(done.returncode if done.returncode >= 0 else 2)


def _trace_asked(cores: str | None, cycles: str | None, out: Path | None) -> tuple[str, str, Path] | None:
    """Parse the options of a trace; faults are reported before anything runs."""
    from wse_sim.csl.host.traced import cores_of, cycles_of

    if cores is None:
        if cycles is not None or out is not None:
            raise WseError(
                "--cycles and --trace-out have no effect without --trace; name the cores as --trace X,Y"
            )
        return None
    cores_of(cores)
    cycles_of(cycles or "0:10000")
    folder = Path("trace") if out is None else out
    claim_folder(folder, "--trace-out")
    return cores, cycles or "0:10000", folder


@app.command("check")
def check_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of examples; every commands*.sh in them is run.")
    ],
    arch: Annotated[str | None, typer.Option("--arch", help="Run only the cases of wse2 or of wse3.")] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Run only cases whose name contains this text.")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Time limit of one case in seconds.", min=1.0, max=1e7)
    ] = 600.0,
    threads: ThreadsOption = None,
    strict: Annotated[
        bool, typer.Option("--strict/--no-strict", help="Refuse programs that the language guide forbids.")
    ] = True,
    sdk: SdkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run every command file below the folders in a copy, and report which pass."""
    from wse_sim.csl.host.commands import check_case, find_cases

    if arch not in (None, "wse2", "wse3"):
        raise WseError(f"--arch is '{arch}'; use wse2 or wse3")
    found = []
    for folder in folders:
        if not is_folder(folder, "folder", WseError):
            raise WseError(f"'{folder}' is not a folder; give a folder of examples")
        found += find_cases(folder, arch, only)
    cases = []
    if not as_json:
        print(f"{'case':<46} arch  pass  {'seconds':>8}  cycles of each run of the host script")
    for name, generation, file in found:
        case = check_case(name, generation, file, timeout, threads, strict=strict, sdk=sdk)
        cases.append(case)
        if not as_json:
            cycles = ", ".join(f"{c:,}" for c in case.cycles)
            passed = "pass" if case.passed else "FAIL"
            shown = name if name != "." else file.resolve().parent.name
            print(f"{shown:<46} {case.arch}  {passed}  {case.seconds:8.1f}  {cycles}", flush=True)
            if case.reason:
                print(f"      {case.reason}")
    passes = sum(case.passed for case in cases)
    if as_json:
        print_json(
            {"cases": [case.as_dict() for case in cases], "passed": passes, "failed": len(cases) - passes}
        )
    else:
        print(f"{passes} of {len(cases)} pass")
    if passes < len(cases):
        raise typer.Exit(1)


@app.command("static")
def static_command(
    folder: Annotated[Path, typer.Argument(help="An output folder of cslc.")],
    launch: Annotated[
        list[str] | None,
        typer.Option(
            "--launch", help="An exported function, with its arguments as integers: NAME or NAME,1,2."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that no data decide the course of a program, and solve its times; no values are computed."""
    from wse_sim.csl.host.launches import static_launches
    from wse_sim.csl.static.table import table

    found = static_launches(folder, launch or [])
    if as_json:
        print_json({"launches": [item.as_dict() for item in found]})
    else:
        print(table(found))
    if any(item.cycles is None for item in found):
        raise typer.Exit(1)


@app.command("memory")
def memory_command(
    folder: Annotated[Path, typer.Argument(help="An output folder of cslc.")], as_json: JsonOption = False
) -> None:
    """Print the memory of every class of cores before any run: code, variables, constants, frames, spare, largest
    symbols.
    """
    from wse_sim.csl.host.memory import memory_of_folder, memory_text

    rows = memory_of_folder(folder)
    if as_json:
        print_json({"classes": [row.as_dict() for row in rows]})
    else:
        print(memory_text(rows))


@app.command("judge")
def judge_command(
    file: Annotated[
        Path | None,
        typer.Argument(help="File with one request (default: one request per line on standard input)."),
    ] = None,
) -> None:
    """Compile, run, check and time kernels in a process that stays alive: it reads a JSON object per line and writes a
    verdict per line.
    """
    import sys

    from wse_sim.csl.judge import answers
    from wse_sim.files import read_text

    passed = True
    lines = sys.stdin if file is None else [" ".join(read_text(file, "the request", WseError).split("\n"))]
    for answer in answers(lines):
        print(answer, flush=True)
        passed = passed and answer.startswith('{"passed": true')
    if not passed:
        raise typer.Exit(1)


@app.command("lsp")
def lsp_command() -> None:
    """Run the language server for editors on standard input and output; the folder editors has the configurations."""
    try:
        from wse_sim.csl.language_server import serve
    except ModuleNotFoundError as fault:
        raise WseError(
            f"the language server needs {fault.name}; install it with pip install 'wse-sim[lsp]'"
        ) from None
    serve()


@app.command("debug")
def debug_command(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A file with cslc and cs_python lines; an editor names it itself (--dap, --port)."
        ),
    ] = None,
    commands: Annotated[
        Path | None, typer.Option("--commands", help="File with debugger commands, one per line.")
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="After the commands of the file, run to the end without a prompt.")
    ] = False,
    timeout: Annotated[float | None, typer.Option("--timeout", help="Seconds.", min=0.1, max=1e7)] = None,
    dap: Annotated[
        bool, typer.Option("--dap", help="Speak the Debug Adapter Protocol on standard input and output.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", help="Serve the protocol to one editor on a local TCP port.", min=0, max=65535
        ),
    ] = None,
) -> None:
    """Debug an unchanged command file: breakpoints, watchpoints, steps forward and back, values, senders of words."""
    if dap or port is not None:
        if file is not None or commands is not None or batch or (dap and port is not None):
            raise WseError("--dap and --port leave the program to the editor: give one of them, alone")
        from wse_sim.csl.host.adapter import serve_port, serve_standard

        raise typer.Exit(serve_standard() if port is None else serve_port(port))
    from wse_sim.csl.host.debugging import debug_console

    if file is None:
        raise WseError("csl debug needs a command file; give a file with cslc and cs_python lines")
    if batch and commands is None:
        raise WseError("--batch needs --commands; name a file with commands of the debugger")
    status = debug_console(file, commands, batch=batch, timeout_s=timeout)
    raise typer.Exit(status if status >= 0 else 2)


@app.command("explain")
def explain_command(
    folder: Annotated[Path, typer.Argument(help="An output folder of cslc.")],
    color: Annotated[
        int | None, typer.Option("--color", help="Draw the routes of a color.", min=0, max=23)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a compiled program: rectangle, classes, colors, queues, memory per core, routes."""
    from wse_sim.csl.host.explain import draw_routes, explained, explanation_text

    if out is not None:
        claim_folder(out)
    about = explained(folder)
    if as_json:
        print_json(about)
    else:
        print(explanation_text(about))
    if color is not None:
        path = draw_routes(folder, color, out or Path())
        print(f"wrote {path}")
