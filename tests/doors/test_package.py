"""The package imports quickly, and a wheel is complete when it is used from another folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(*words: str, cwd: Path) -> str:
    done = subprocess.run([*words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_import_pulls_in_neither_torch_nor_matplotlib_nor_numba(tmp_path: Path):
    """`import wse_sim` loads only what is needed to find names."""
    code = "import sys, wse_sim; print([m for m in ('torch', 'matplotlib', 'numba', 'plotly', 'pandas') if m in sys.modules])"
    assert _run(sys.executable, "-c", code, cwd=tmp_path).strip() == "[]"


@pytest.mark.slow
def test_the_core_works_without_torch(tmp_path: Path):
    """A hand-made graph compiles and runs in both modes while torch cannot be imported."""
    code = (
        "import os, sys; sys.modules['torch'] = None; os.environ['WSE_SIM_CACHE'] = 'none'\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.handmade import transformer\n"
        "import wse_sim\n"
        "for mode in ('pipelined', 'weight-streaming'):\n"
        "    plan = wse_sim.compile(transformer(), 'wse2', mode=mode, batch=4)\n"
        "    print(wse_sim.simulate(plan).samples_per_s > 0)\n"
        "try:\n"
        "    wse_sim.run('fc-mnist')\n"
        "except wse_sim.WseError as fault:\n"
        "    print('torch' in str(fault))\n"
    )
    assert _run(sys.executable, "-c", code, cwd=tmp_path).split() == ["True"] * 3


@pytest.mark.slow
def test_the_wheel_is_complete_and_works_from_another_folder(tmp_path: Path):
    """A wheel is built, installed into an empty environment, and used from an empty folder.

    The environment borrows the installed libraries, not this package: a path file adds their folder, and
    editable installs are not seen through it.
    """
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = tmp_path / "source"
    files = [
        f
        for f in _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
        if (ROOT / f).exists() and not f.startswith(("tests/", "docs/"))
    ]
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, source / file, follow_symlinks=False)
    _run(*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source), cwd=tmp_path)
    wheel = next(wheels.glob("wse_sim-*.whl"))
    inside = set(zipfile.ZipFile(wheel).namelist())
    links = {"kernels/": "wse_sim/kernels/", "configs/": "wse_sim/configs/"}
    places = [*links.items(), ("benchmarks/validation/", "wse_sim/suites/"), ("wse_sim/", "wse_sim/")]
    wanted = {to + f.removeprefix(at) for f in files for at, to in places if f.startswith(at)}
    wanted = {f for f in wanted if not (source / f).is_symlink()}
    assert sorted(wanted - inside) == []
    _run(sys.executable, "-m", "venv", "--without-pip", "empty", cwd=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    site = Path(
        _run(
            str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    _run(*pip, "install", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path)
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import wse_sim, wse_sim.kernels, wse_sim.report.html, wse_sim.validation.suite as s\n"
        "from importlib import resources\n"
        "print(wse_sim.kernels.__file__)\n"
        "print(len(wse_sim.load_wafer('wse3').provenance) > 40, len(s.load_suite().points) > 20)\n"
        "print(any(resources.files('wse_sim.report').joinpath('templates').iterdir()))\n"
        "print(wse_sim.kernels.load_families() != ())\n"
    )
    out = _run(str(python), "-c", code, cwd=tmp_path).split()
    assert out[0].startswith(str(site))
    assert out[1:] == ["True"] * 4
    assert "fc-mnist" in _run(
        str(tmp_path / "empty" / "bin" / "python"), "-m", "wse_sim.cli", "show", "models", cwd=tmp_path
    )


def test_a_result_opens_the_doors_of_the_report(tmp_path: Path):
    """summary, table, data frame, heat map, breakdown and trace are equal when called twice, and change nothing."""
    import wse_sim
    from tests.handmade import transformer
    from wse_sim.serialize import same

    result = wse_sim.simulate(
        wse_sim.compile(transformer(), "wse2", mode="pipelined", batch=4, layouts=False)
    )
    before = wse_sim.simulate(
        wse_sim.compile(transformer(), "wse2", mode="pipelined", batch=4, layouts=False)
    )
    assert result.summary() == result.summary()
    assert result.table(sort_by="time", row_limit=3) == result.table(sort_by="time", row_limit=3)
    assert len(result.to_dataframe()) == len(result.kernels)
    assert result.breakdown() is not None
    result.heatmap("busy").savefig(tmp_path / "map.png")
    result.export_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "map.png").stat().st_size > 1000
    assert (tmp_path / "trace.json").read_text().startswith("{")
    assert same(result, before)
    assert result.save(tmp_path) == tmp_path
    assert wse_sim.load_result(tmp_path) == result
