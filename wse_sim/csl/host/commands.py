"""Commands for CSL users: ``cslc``, ``cs_python``, and command files that call them."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wse_sim.atomic_files import scratch
from wse_sim.child_processes import run_group
from wse_sim.csl.compiler import CompiledProgram, compile_program
from wse_sim.csl.host.absent_paths import INSTEAD, absent_paths, shell_start
from wse_sim.csl.host.debugged import DEBUG_VARIABLE
from wse_sim.csl.host.launches import STATIC_VARIABLE, read_found
from wse_sim.csl.host.record import FIGURES_VARIABLE, THREADS_VARIABLE
from wse_sim.csl.host.report import FOLDER_VARIABLE
from wse_sim.csl.host.sanitized import SANITIZE_VARIABLE, findings_text, read_findings
from wse_sim.csl.host.script import run_script
from wse_sim.csl.host.traced import TRACE_VARIABLE
from wse_sim.errors import WseError
from wse_sim.files import is_file, is_plain_number, read_text

COMPAT = Path(__file__).parent.parent / "compat"

# Options of cslc that take a value.
_VALUED = {
    "--arch": "arch", "--fabric-dims": "fabric_dims", "--fabric-offsets": "fabric_offsets", "--params": "params",
    "--colors": "colors", "-o": "out", "--o": "out", "--channels": "channels", "--import-path": "import_path",
    "--max-inlined-iterations": "max_inlined", "--fp16-format": "fp16_format",
    "--sdk": "sdk",
}  # fmt: skip
_JOINED = ("--params", "--colors", "--import-path")  # options that may be repeated
_VALUED_WITHOUT_EFFECT = {
    "--width-west-buf",
    "--width-east-buf",
    "--max-parallelism",
    "--link-section-start-address-bytes",
}
_FLAGS = {"--memcpy": "memcpy", "--strict": "strict"}
STRICT_VARIABLE = "WSE_SIM_CSL_STRICT"
"""Environment variable: 1 compiles every program with --strict."""
SDK_VARIABLE = "WSE_SIM_CSL_SDK"
"""Environment variable: SDK release whose rules apply to programs that are compiled without --sdk."""
_FLAGS_WITHOUT_EFFECT = {
    "--verbose",
    "-v",
    "--quiet",
    "--no-warnings",
    "--output-json",
    "--dump-dsr-alloc-graph",
}


def parse_cslc(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse a ``cslc`` command line into the layout file and the options of :func:`compile_program`.

    Raises
    ------
    WseError
        If an option is unknown (the message suggests the closest one), repeated, malformed or without its
        value, or not exactly one file is given.
    """
    files: list[str] = []
    given: dict[str, list[str]] = {}
    rest = list(arguments)
    known = [*_VALUED, *_VALUED_WITHOUT_EFFECT, *_FLAGS, *_FLAGS_WITHOUT_EFFECT]
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            files.append(word)
            continue
        name, equals, value = word.partition("=")
        if f"-{name}" in known:  # the vendor's option parser also accepts one dash
            name = f"-{name}"
        if name in _FLAGS or name in _FLAGS_WITHOUT_EFFECT:
            given.setdefault(name, []).append("true")
            continue
        if name not in _VALUED and name not in _VALUED_WITHOUT_EFFECT:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}" if near else f"; use one of {', '.join(sorted(known))}"
            raise WseError(f"cslc has no option '{name}'{hint}")
        if not equals:
            if not rest:
                raise WseError(f"cslc: option '{name}' needs a value")
            value = rest.pop(0)
        if name in given and name not in _JOINED:
            raise WseError(f"cslc: option '{name}' is given twice; give it once")
        given.setdefault(name, []).append(value)
    if len(files) != 1:
        raise WseError(f"cslc takes one layout file, {len(files)} are given ({', '.join(files) or 'none'})")
    return files[0], _compile_options(given)


def _compile_options(given: dict[str, list[str]]) -> dict[str, Any]:
    by_name = {_VALUED[name]: values for name, values in given.items() if name in _VALUED}
    strict = "--strict" in given or os.environ.get(STRICT_VARIABLE) == "1"
    options: dict[str, Any] = {
        "memcpy": "--memcpy" in given,
        "strict": strict,
        "out": by_name.get("out", ["out"])[-1],
    }
    if "arch" in by_name:
        options["arch"] = by_name["arch"][-1]
    for name in ("fabric_dims", "fabric_offsets"):
        if name in by_name:
            options[name] = _pair(name, by_name[name][-1])
    for name, target in (("channels", "channels"), ("max_inlined", "max_inlined_iterations")):
        if name in by_name:
            options[target] = _integer(name, by_name[name][-1])
    sdk = by_name.get("sdk", [os.environ.get(SDK_VARIABLE, "")])[-1]
    if sdk:
        options["sdk"] = sdk
    options["params"] = _pairs("--params", by_name.get("params", []))
    options["colors"] = {
        n: _integer("--colors", v) for n, v in _pairs("--colors", by_name.get("colors", [])).items()
    }
    options["import_paths"] = tuple(by_name.get("import_path", []))
    if "fp16_format" in by_name:
        options["fp16"] = by_name["fp16_format"][-1]
    return options


def _integer(name: str, text: str) -> int:
    try:
        if not is_plain_number(text):
            raise ValueError
        return int(text, 0)
    except ValueError:
        raise WseError(f"{name} is '{text}'; it must be an integer") from None


def _pair(name: str, text: str) -> tuple[int, int]:
    parts = text.split(",")
    if len(parts) != 2:
        raise WseError(f"--{name.replace('_', '-')} is '{text}'; give two integers, COLUMNS,ROWS")
    return _integer(f"--{name.replace('_', '-')}", parts[0]), _integer(
        f"--{name.replace('_', '-')}", parts[1]
    )


def _pairs(name: str, texts: list[str]) -> dict[str, str]:
    found = {}
    for item in ",".join(texts).split(","):
        if not item.strip():
            continue
        key, colon, value = item.strip().partition(":")
        if not colon or not key or not value:
            raise WseError(f"{name} has '{item.strip()}'; give NAME:VALUE, separated by commas")
        if key in found:
            raise WseError(f"{name} has '{key}' twice; give it one value")
        found[key] = value
    return found


def cslc(arguments: list[str]) -> CompiledProgram:
    """Compile a program as the ``cslc`` command does, and print its notes.

    Raises
    ------
    WseError
        If the command line is invalid or the program has errors.
    """
    path, options = parse_cslc(arguments)
    program = compile_program(path, **options)
    for note in program.notes:
        print(note)
    wanted = [word.partition("=")[2] for word in arguments if word.startswith("--output-json=")]
    if wanted:  # without a path the option names the file that is always written
        shutil.copy(Path(options["out"]) / "out.json", wanted[-1])
    return program


def cs_python(arguments: list[str]) -> int:
    """Run a host script with the interface's modules on the import path; return its exit status.

    Raises
    ------
    WseError
        If the script does not exist or is not text, or a call of the interface fails.
    """
    if not arguments:
        raise WseError("cs-python needs a script; give FILE.py and its arguments")
    script = Path(arguments[0])
    if not is_file(script, "script", WseError):
        raise WseError(f"there is no script '{script}'; give FILE.py and its arguments")
    read_text(script, "the script", WseError)  # raises an error if it is not text
    sys.argv = [str(script), *arguments[1:]]
    sys.path[:0] = [str(script.resolve().parent), str(COMPAT)]
    try:
        run_script(script)
    except SystemExit as end:
        return exit_status(end)
    except KeyboardInterrupt:
        return 130
    except WseError as fault:
        told = WseError(f"{_line_of(fault, script)}{fault}")
        told.keeps_lines = fault.keeps_lines
        raise told from fault
    except Exception as fault:  # errors of the script itself are printed as Python prints them
        frames = fault.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
            frames = frames.tb_next
        traceback.print_exception(type(fault), fault, frames or fault.__traceback__)
        return 1
    return 0


def exit_status(end: SystemExit) -> int:
    """Return the exit status of a script that called `sys.exit`: 0 without an argument; a text is printed and
    gives 1."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _line_of(fault: BaseException, script: Path) -> str:
    """Return ``run.py:LINE: `` for the last line in the script's folder that led to an error, or an empty
    string."""
    folder = str(script.resolve().parent)
    frames = [
        f
        for f in traceback.extract_tb(fault.__traceback__)
        if str(Path(f.filename).resolve()).startswith(folder)
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames else ""


@dataclass
class Case:
    """Result of one command file: whether it succeeded, its cycles, and the reason for a failure."""

    name: str
    arch: str
    passed: bool
    cycles: list[int] = field(default_factory=list)
    seconds: float = 0.0
    memory_bytes: int = 0
    reason: str = ""
    command: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


ABSENT_TOOLS = {
    "sdk_debug_shell": {
        "visualize": " visualize is the vendor's viewer of a run and is not here; 'wse-sim csl run FILE --report DIR' writes a page of it, --trace a timeline",
        "smoke": " smoke tests the vendor's installation and is not here; 'wse-sim csl check DIR' runs every command file below a folder",
        "*": ": only its command compile is here, as cslc; use 'wse-sim csl run' and 'wse-sim csl debug' for the others",
    },
    "csdb": {
        "*": " reads core dumps of the vendor's simulator and is not here; 'wse-sim csl debug FILE' debugs a command file"
    },
    "cs_readelf": {
        "*": " reads the vendor's binaries, which are not made here; 'wse-sim csl explain OUT' and 'csl memory OUT' show a compiled program"
    },
}
"""Tools of the vendor without an equivalent: for each first argument, the message with what to use instead.  They exit with status 2."""


def fill_command_folder(folder: Path) -> None:
    """Write the commands `cslc`, `cs_python`, `python` and the vendor's other tools as shell scripts into a
    folder.

    `cslc` and `cs_python` call this installation. `python` calls `cs_python` for scripts that contain
    ``cerebras``. Other tools of the vendor print what to use instead.
    """
    for name, command in (("cslc", "cslc"), ("cs_python", "cs-python")):
        path = folder / name
        # -P keeps the working folder off the import path: a random.py next to the program must not be imported
        path.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -P -m wse_sim.cli {command} "$@"\n', encoding="utf-8"
        )
        path.chmod(0o755)
    for name, refused in ABSENT_TOOLS.items():
        cases = f'  compile) shift; exec "{folder}/cslc" "$@";;\n' if name == "sdk_debug_shell" else ""
        cases += "".join(f'  {word}) echo "wse-sim: {name}{rest}" >&2;;\n' for word, rest in refused.items())
        path = folder / name
        path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexit 2\n', encoding="utf-8")
        path.chmod(0o755)
    for name in ("python", "python3"):
        path = folder / name
        other = shutil.which(name) or sys.executable
        path.write_text(
            f'#!/bin/sh\ncase "$1" in *.py) if grep -q "cerebras" "$1" 2>/dev/null; then exec "{folder}/cs_python" "$@"; fi;; esac\n'
            f'exec "{other}" "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o755)


PAINT = re.compile(r"^\s*%python_sdk_paint\b", re.MULTILINE)
"""Placeholder lines of the public examples of SDK 2.10; their tests replace them by the folder's script."""


def shell_file(file: Path, folder: Path) -> str:
    """Return the file that the shell runs: the command file, or a copy with its placeholders replaced."""
    text = read_text(file, "the command file", WseError)
    if not PAINT.search(text):
        return file.name
    copy = folder / file.name
    copy.write_text(PAINT.sub("cs_python run.py", text), encoding="utf-8")
    return str(copy)


def run_commands(file: Path, *, report: Path | None = None, figures: Path | None = None, quiet: bool = False,
                 timeout_s: float | None = None, threads: int | None = None, static: bool = False, strict: bool = False,
                 sdk: str | None = None, sanitize: bool = False, trace: tuple[str, str, Path] | None = None,
                 debug: str | None = None) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command file in its own folder with this package's commands first on PATH; processes that it
    started do not outlive it.

    Parameters
    ----------
    report, figures
        Folder of the report and file of the figures of every run.
    quiet
        Capture the output instead of printing it.
    timeout_s
        Time limit in seconds.
    threads
        Threads that simulate the fabric; results do not depend on it.
    static
        Print after the run which launches are static.
    strict, sdk
        Compile programs with ``--strict``, and with ``--sdk`` of this release.
    sanitize
        Print after the run what the sanitizer found; the status is then 1 if it found anything.
    trace
        (cores, cycles, folder) of a trace.
    debug
        Front end and socket of a debugger, ``FRONT|SOCKET``.

    Raises
    ------
    WseError
        If the file does not exist or is not text.
    subprocess.TimeoutExpired
        If it does not end in time.
    """
    if not is_file(file, "command file", WseError):
        raise WseError(f"there is no command file '{file}'; give a file with cslc and cs_python lines")
    text = read_text(file, "the command file", WseError)
    if "\x00" in text:
        raise WseError(f"the command file {file} holds null bytes; give a file with cslc and cs_python lines")
    with scratch("csl") as folder:
        fill_command_folder(folder)
        environment = _environment(folder, report, figures, threads)
        if absent := absent_paths(text):
            environment["WSE_SIM_BASH_ENV"] = environment.get("BASH_ENV", "")
            environment["BASH_ENV"] = str(shell_start(absent, folder))
        if strict:
            environment[STRICT_VARIABLE] = "1"
        if sdk is not None:
            environment[SDK_VARIABLE] = sdk
        kept = folder / "launches.jsonl"
        if static:
            environment[STATIC_VARIABLE] = str(kept)
        if trace is not None:
            environment[TRACE_VARIABLE] = f"{trace[0]}|{trace[1]}|{trace[2].resolve()}"
        if debug is not None:
            environment[DEBUG_VARIABLE] = debug
            environment.pop(FOLDER_VARIABLE, None)
        findings = folder / "findings.jsonl"
        if sanitize:
            environment[SANITIZE_VARIABLE] = str(findings)
        done = _run_quietly if quiet else _run_loudly
        answer = done(
            ["bash", shell_file(file, folder)], file.resolve().parent, environment, timeout_s, folder
        )
        if static:
            print(read_found(kept).as_text())
        if sanitize:
            found = read_findings(findings)
            print(findings_text(found))
            answer.returncode = answer.returncode or int(bool(found))
        return answer


def _environment(
    folder: Path, report: Path | None, figures: Path | None, threads: int | None
) -> dict[str, str]:
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    for name, command in (
        ("CSLC", "cslc"),
        ("CS_PYTHON", "cs_python"),
    ):  # variables that public command files use
        environment.setdefault(name, command)
    if report is not None:
        environment["WSE_SIM_CSL_REPORT_DIR"] = str(report.resolve())
    if figures is not None:
        environment[FIGURES_VARIABLE] = str(figures.resolve())
    if threads is not None:
        environment[THREADS_VARIABLE] = str(threads)
    return environment


def _run_loudly(
    words: list[str], cwd: Path, env: dict[str, str], timeout_s: float | None, folder: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(words, run_group(words, cwd=cwd, env=env, timeout_s=timeout_s))


def _run_quietly(
    words: list[str], cwd: Path, env: dict[str, str], timeout_s: float | None, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run a command with its output in files; reading a pipe would wait for every process that keeps it
    open."""
    out, err = folder / "stdout", folder / "stderr"
    with out.open("wb") as first, err.open("wb") as second:
        status = run_group(words, cwd=cwd, env=env, timeout_s=timeout_s, stdout=first, stderr=second)
    said = (path.read_bytes().decode("utf-8", "replace") for path in (out, err))
    return subprocess.CompletedProcess(words, status, *said)


def find_cases(folder: Path, arch: str | None = None, only: str | None = None) -> list[tuple[str, str, Path]]:
    """Return (name, architecture, file) of every command file below a folder.

    Raises
    ------
    WseError
        If there is none.
    """
    found = []
    for file in sorted(folder.rglob("commands*.sh")):
        name = str(file.parent.relative_to(folder))
        generation = "wse3" if "wse3" in file.name else "wse2"
        if (arch is None or arch == generation) and (only is None or only in name):
            found.append((name, generation, file))
    if not found:
        raise WseError(
            f"'{folder}' has no command file{f' for {only!r}' if only else ''}; give a folder of examples"
        )
    return found


NEAR_LEVELS = 2
"""Levels of parent folders whose files a case can access: examples keep their libraries in folders next to the cases."""


def _copy_beside_links(folder: Path, scratch: Path, levels: int) -> Path:
    """Copy a folder into `scratch`; its siblings, and those of its parents up to `levels` levels up, become
    symbolic links."""
    chain = [folder, *folder.parents][: levels + 1]
    here = scratch / chain[-1].name
    if levels == 0:
        shutil.copytree(folder, here, symlinks=True)
        return here
    here.mkdir(exist_ok=True)  # the root of the file system has no name
    for above, below in itertools.pairwise(reversed(chain)):
        for item in above.iterdir():
            if item != below:
                (here / item.name).symlink_to(item)
        here = here / below.name
        if below == folder:
            shutil.copytree(folder, here, symlinks=True)
        else:
            here.mkdir()
    return here


def printed_by(file: Path, pattern: str, timeout_s: float = 600.0) -> float:
    """Run a command file in a copy of its folder and return the number that `pattern` captures in its output.

    Raises
    ------
    WseError
        If the file fails or does not finish in time, or prints no such number.
    """
    folder = file.parent.resolve()
    with scratch("case") as place:
        copy = _copy_beside_links(folder, place, NEAR_LEVELS)
        try:
            done = run_commands(copy / file.name, quiet=True, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            raise WseError(f"'{file}' did not finish within {timeout_s:g} s") from None
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise WseError(f"'{file}' ended with status {done.returncode}: {(said or ['no message'])[-1]}")
    found = re.search(pattern, done.stdout)
    if found is None or not found.groups():
        raise WseError(f"'{file}' printed nothing like '{pattern}' with a group for the number")
    return float(found[1])


def check_case(
    name: str,
    arch: str,
    file: Path,
    timeout_s: float = 600.0,
    threads: int | None = None,
    *,
    strict: bool = True,
    sdk: str | None = None,
) -> Case:
    """Run one command file in a copy of its folder; a warning counts as a failure."""
    start = time.perf_counter()
    with scratch("case") as place:
        levels = max(NEAR_LEVELS, len(Path(name).parts))
        copy = _copy_beside_links(file.parent.resolve(), place, levels)
        figures = place / "figures.jsonl"
        try:
            done = run_commands(
                copy / file.name,
                figures=figures,
                quiet=True,
                timeout_s=timeout_s,
                threads=threads,
                strict=strict,
                sdk=sdk,
            )
            status, said = done.returncode, done.stderr + done.stdout
        except subprocess.TimeoutExpired:
            status, said = -1, f"not finished within {timeout_s:g} s"
        cycles = (
            [json.loads(line)["cycles"] for line in figures.read_text(encoding="utf-8").splitlines()]
            if figures.exists()
            else []
        )
    lines = [line for line in said.strip().splitlines() if line.strip()]
    faults = [
        line
        for line in lines
        if line.startswith(("wse-sim:", "error", "Error"))
        and "cycles on" not in line
        and not line.endswith(INSTEAD)
    ]
    reason = "" if status == 0 else (faults or lines or ["no message"])[-1]
    warned = [line for line in lines if line.startswith("wse-sim: warning")]
    if status == 0 and warned:
        reason = warned[0]
    return Case(
        name, arch, status == 0 and not warned, cycles, time.perf_counter() - start, 0, reason, str(file)
    )
