"""Our kernels written in CSL: the same values, cycles near those of the fabric program, and what cannot be written says so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wse_sim.bench.command import find, run_kernel
from wse_sim.bench.emit import write_csl
from wse_sim.csl.host.commands import cs_python, cslc
from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer

# Parameters, and the largest difference of cycles.  The scalar code around the vectors is charged as one number in a fabric program and
# executed in CSL: about 22 cycles a run, which long vectors hide.
CASES = [
    ("broadcast", {"words": 1024}, 0.05),
    ("reduce", {"algorithm": "chain", "words": 1024}, 0.05),
    ("reduce", {"algorithm": "star", "cores": 8, "words": 256}, 0.05),
    ("allreduce", {"algorithm": "two_phase", "words": 1024}, 0.05),
    ("gemm", {"rows": 4, "cols": 4, "m": 32, "k": 32, "n": 32}, 0.1),
    ("halo", {"rows": 4, "cols": 4}, 0.05),
    ("gemv", {"rows": 8, "cols": 8, "m": 512, "n": 512}, 0.06),
]


def emitted(folder: Path, monkeypatch: pytest.MonkeyPatch, arch: str, capsys: pytest.CaptureFixture[str]) -> int:  # fmt: skip
    """Compile and run the program in a folder; its cycles, if its own comparison of the values held."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    line = next(
        text for text in (folder / f"commands_{arch}.sh").read_text().splitlines() if text.startswith("cslc")
    )
    cslc(line.split()[1:])
    assert cs_python(["run.py", "--name", "out"]) == 0
    said = capsys.readouterr().out
    assert "SUCCESS!" in said
    return int(said.split("cycles:")[1].split()[0])


@pytest.mark.parametrize(("name", "given", "limit"), CASES)
def test_a_kernel_in_csl_is_the_kernel(name: str, given: dict[str, object], limit: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Values within the kernel's tolerance (its script compares), cycles within the limit."""
    wafer = load_wafer("wse2")
    write_csl(name, given, find(name).build(given, wafer), tmp_path)
    original = run_kernel(name, given, wafer, timing="fabric").fabric_cycles
    assert original is not None
    cycles = emitted(tmp_path, monkeypatch, "wse2", capsys)
    assert abs(cycles - original) < limit * original


def test_the_other_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Queues are bound where the generation asks for it."""
    given = {"rows": 2, "cores": 4, "algorithm": "tree"}
    write_csl("reduce", given, find("reduce").build(given, load_wafer("wse3")), tmp_path)
    assert emitted(tmp_path, monkeypatch, "wse3", capsys) > 0


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("gemm", {"algorithm": "mesh", "rows": 4, "cols": 4}, "microthreads"),
        ("stencil25", {"nz": 20, "block": 20}, "free queues"),
    ],
)
def test_what_cannot_be_written(name: str, given: dict[str, object], words: str, tmp_path: Path) -> None:
    """One sentence, and no file."""
    case = find(name).build(given, load_wafer("wse2"))
    with pytest.raises(KernelError, match=words):
        write_csl(name, given, case, tmp_path / "out")
    assert not (tmp_path / "out").exists()
