"""Commands in poor environments: closed or full outputs, no home, limits, odd names; and no process outlives a command.

Each case is its own process: limits, closed files and signals are those of a process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import pytest

from tests.doors.test_interrupts import alive, children, gone
from wse_sim.child_processes import MARK, run_group
from wse_sim.csl.host.commands import run_commands
from wse_sim.door import shortage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, uses /dev/full")
DOOR = "import sys; sys.argv[0] = 'wse-sim'; from wse_sim.door import main; main()"
WSE = f'"{sys.executable}" -c "{DOOR}"'
ANSWERS, REFUSES = "show wafer wse2", "show wafer nowhere"
RUN = "run fc-mnist --mode weight-streaming --batch 4 --out out"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Return a line of bash; `WSE` in it is the command."""
    words = ["bash", "-c", line.replace("WSE", WSE)]
    return subprocess.run(
        words,
        check=False,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def is_sentence(text: str) -> bool:
    """Check for one line of ours, and no trace."""
    return text.startswith("wse-sim: ") and text.count("\n") == 1 and "fault of the simulator" not in text


CLOSED = {  # how the outputs are given, and whether the sentence can be read
    "": True, ">&-": True, "2>&-": False, "<&-": True, ">&- 2>&-": False, "<&- >&- 2>&-": False, ">/dev/full": True,
    "2>/dev/full": False, "| head -c 1 >/dev/null; exit ${PIPESTATUS[0]}": True,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("how", "encoding"), [(">&-", "ascii")])
def test_outputs_closed_full_or_narrow(tmp_path: Path, how: str, encoding: str) -> None:
    """The status is 0 with the answer or 2 with a refusal, wherever standard output and standard error lead."""
    _outputs(tmp_path, how, encoding)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "encoding"), list(zip(CLOSED, cycle(["utf-8", "ascii", "cp437", "latin-1"])))
)
def test_outputs_closed_full_or_narrow_all(tmp_path: Path, how: str, encoding: str) -> None:
    _outputs(tmp_path, how, encoding)


@pytest.mark.slow
def test_a_locale_of_ascii_alone_changes_no_file(tmp_path: Path) -> None:
    """Files of ours and of the user are UTF-8 under any locale: a run, a study, a compiled program."""
    pytest.importorskip("torch")
    narrow = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    study = (
        'about: "\u00fc"\nfixed: {model: fc-mnist, mode: weight-streaming}\ngrid: {batch: [4]}\ndraws: 0\n'
    )
    (tmp_path / "s.yaml").write_text(study, encoding="utf-8")
    emit = "kernel reduce --rows 1 --cols 4 --emit csl c"
    for words in (RUN, "report out", "study s.yaml --out s --workers 0", "study export s --format csv", emit):
        done = shell(f"WSE {words}", tmp_path, **narrow)
        assert done.returncode == 0, (words, done.stderr)


def _outputs(folder: Path, how: str, encoding: str) -> None:
    full = ">/dev/full" in how.split()
    for words, status in ((ANSWERS, 2 if full else 0), (REFUSES, 2)):
        done = shell(f"WSE {words} {how}", folder, PYTHONIOENCODING=encoding)
        assert done.returncode == status, (words, how, done.stderr)
        assert not done.stderr or status == 2
        if status == 2 and CLOSED[how]:
            assert is_sentence(done.stderr), done.stderr
    assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that a run has written."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ran")
    assert shell(f"WSE {RUN} --quiet", folder).returncode == 0
    return folder / "out"


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", ["-f 0", "-f 20", "-n 6", "-n 24", "-v 80000", "-v 250000", "-v 450000", "-v 1000000"]
)
def test_limits_of_the_process(tmp_path: Path, ran: Path, limit: str) -> None:
    """The result is the answer, or status 2 with one sentence; an earlier result stays."""
    shutil.copytree(ran, tmp_path / "out")
    done = shell(f"ulimit {limit}; WSE {RUN} --quiet --batch 8", tmp_path)
    assert done.returncode in (0, 2), done.stderr
    assert done.returncode == 0 or is_sentence(done.stderr), done.stderr
    assert shell("WSE report out --quiet", tmp_path).returncode == 0
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_machine_code_without_a_place_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a writable home and a writable package folder every process compiles for itself."""
    from numba.core import caching

    from wse_sim.jit import bare_kernel, kernel

    monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    for compiled in (kernel, bare_kernel):
        assert compiled(_one_more)(1) == 2


def _one_more(x: int) -> int:
    return x + 1


def test_machine_code_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code that cannot be stored is compiled again next time."""
    from numba.core.caching import IndexDataCacheFile

    from wse_sim.jit import kernel

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(IndexDataCacheFile, "save", full)
    assert kernel(_one_more)(1.5) == 2.5


NAMES = ["$\\frac{$", "$x$ a$b", "{x} %s <b>& [red]x[/red]", "é ü 漢 \\ '\"", "a" * 200, "-x", "x\ty"]


EACH_IN_TURN = """
import contextlib, io, json, sys
from wse_sim.cli import app
from wse_sim.door import run

for number, mode in enumerate(sys.argv[1:]):
    heard = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(heard):
        status = run(app, ["run", f"{number}.yaml", "--mode", mode, "--batch", "4", "--out", f"out{number}", "--quiet"])
    print(json.dumps([status, heard.getvalue()]))
"""


@pytest.mark.slow
def test_odd_names_of_models(tmp_path: Path) -> None:
    """A name is shown as it is, in tables, pictures and pages, or refused in a sentence before any work."""
    pytest.importorskip("torch")
    import yaml

    model = {"family": "mlp", "layers": 2, "hidden": 32, "input": 16, "classes": 4, "activation": "relu"}
    for number, name in enumerate(NAMES):
        text = yaml.safe_dump({"name": name, "source": "x", "model": model}, allow_unicode=True)
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    modes = [mode for _, mode in zip(NAMES, cycle(["weight-streaming", "pipelined"]), strict=False)]
    out = subprocess.run(
        [sys.executable, "-c", EACH_IN_TURN, *modes],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    ended = [json.loads(line) for line in out.stdout.splitlines()]
    assert len(ended) == len(NAMES)
    for name, (status, heard) in zip(NAMES, ended, strict=True):
        assert status == 0 or (status == 2 and is_sentence(heard)), (name, heard)
    assert [status for status, _ in ended].count(0) > len(NAMES) // 2


@pytest.mark.slow
def test_a_picture_with_formulas_for_names(tmp_path: Path) -> None:
    """Text that matplotlib cannot parse as mathematics is drawn as plain text."""
    pytest.importorskip("matplotlib")
    import numpy as np

    from wse_sim.report.heatmap import draw_fabric_map

    for name in NAMES[:3]:
        draw_fabric_map({name: np.eye(3)}, tmp_path / "map.png", title=name, label=name)
    assert (tmp_path / "map.png").stat().st_size


def test_what_the_machine_lacks_is_said_however_it_is_wrapped() -> None:
    """Libraries wrap the system's message: causes of causes are examined, and their words are shown."""
    lacks: list[tuple[BaseException, str]] = [
        (OSError(28, "No space left on device"), "make room"), (OSError(27, "File too large"), "make room"),
        (OSError(12, "Cannot allocate memory"), "ulimit -v"), (MemoryError(), "ulimit -v"),
        (ImportError("libx.so: failed to map segment from shared object"), "ulimit -v"),
        (OSError(24, "Too many open files"), "ulimit -n"), (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "ulimit -u"),
    ]  # fmt: skip
    for cause, says in lacks:
        middle = ValueError("of a library")
        middle.__cause__ = cause
        outer = RuntimeError("of another")
        outer.__context__ = middle
        for fault in (cause, middle, outer):
            assert says in shortage(fault)
    assert shortage(ValueError("x")) == shortage(KeyError("too many")) == ""


SLEEPS = "setsid sleep 600 & echo $! > left; sleep 600 & (sleep 600 & sleep 600) & trap '' TERM INT HUP; echo ready; while true; do sleep 600; done\n"


def test_time_is_up_for_a_group(tmp_path: Path) -> None:
    """A command file has background processes that ignore signals: all of them end, and so does the call."""
    (tmp_path / "c.sh").write_text(f"echo $$ > pid\n{SLEEPS}")
    with pytest.raises(subprocess.TimeoutExpired):
        run_commands(tmp_path / "c.sh", quiet=True, timeout_s=0.3)
    leader = int((tmp_path / "pid").read_text())
    assert not [
        pid
        for pid in Path("/proc").iterdir()
        if pid.name.isdecimal() and _group(pid) == leader and alive(int(pid.name))
    ]
    assert not alive(int((tmp_path / "left").read_text()))


def _group(place: Path) -> int:
    try:
        return int((place / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0


def test_what_runs_behind_a_program_that_ended_ends(tmp_path: Path) -> None:
    """No background process of the program stays; the status is that of the program."""
    for body, status in (
        ("sleep 600 & echo $! > pid; exit 5", 5),
        ("sleep 600 & echo $! > pid; kill -9 $$", -9),
    ):
        assert run_group(["bash", "-c", body], cwd=tmp_path, env=dict(os.environ)) == status
        assert not alive(int((tmp_path / "pid").read_text()))


LEAVES = (
    "setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > daemon; while true; do sleep 600; done' & "
    "while [ ! -s daemon ]; do sleep 0.01; done; exit 5"
)


def test_what_leaves_the_session_of_a_program_ends_too(tmp_path: Path) -> None:
    """A daemon that ignores signals ends with the program that started it; one that another command started continues."""
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: "another"}, start_new_session=True)
    try:
        assert run_group(["bash", "-c", LEAVES], cwd=tmp_path, env=dict(os.environ), timeout_s=60) == 5
        assert not alive(int((tmp_path / "daemon").read_text()))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_mark_is_added_to_those_of_the_callers(tmp_path: Path) -> None:
    """The end of an outer command file therefore ends what an inner one started."""
    run_group(["bash", "-c", f"echo ${MARK} > marks"], cwd=tmp_path, env={**os.environ, MARK: "outer"})
    first, second = (tmp_path / "marks").read_text().split()
    assert first == "outer"
    assert len(second) == 32


def _hears_all() -> None:
    """Under nohup a command ignores SIGHUP, as one wishes; not here."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("words", [["csl", "run", "c.sh"], ["csl", "check", "."]])
def test_no_signal_leaves_a_process(tmp_path: Path, words: list[str], number: signal.Signals) -> None:
    """A command that is ended while its programs run ends all of them, also by SIGKILL."""
    (tmp_path / "commands.sh").write_text(SLEEPS)
    (tmp_path / "c.sh").write_text(SLEEPS)
    command = subprocess.Popen(
        [sys.executable, "-c", DOOR, *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_hears_all,  # noqa: PLW1509
    )
    end = time.monotonic() + 120
    while len(children(command.pid)) < 6 and time.monotonic() < end and command.poll() is None:
        time.sleep(0.05)
    below = children(command.pid)
    assert len(below) >= 6
    command.send_signal(number)
    assert command.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    assert gone(below, 20.0)
