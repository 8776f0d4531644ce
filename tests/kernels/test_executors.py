"""Every kernel with a fabric program runs on the executor for large programs and on the one that steps all cycles."""

from __future__ import annotations

import contextlib

import pytest

from tests.fabric.executors.maxplus.compare import differences
from wse_sim.bench.command import find, kernel_commands
from wse_sim.errors import KernelError, ProgramError
from wse_sim.fabric import run
from wse_sim.fabric.executors.maxplus.executor import MaxPlus
from wse_sim.fabric.executors.wavelet.executor import Wavelet
from wse_sim.hardware import load_wafer
from wse_sim.kernels import load_families
from wse_sim.kernels.contract.family import Case

NAMES = tuple(dict.fromkeys((*kernel_commands(), *load_families())))
SIDES = {"rows", "cols", "cores"}
BOUNDED = {"point_to_point", "topk", "vector_op"}  # one line or one core, whatever the rectangle
# Sizes that do not follow from the defaults: programs of one of several products, slices or heads.
GIVEN: dict[str, dict[str, int]] = {
    "attention": {"q": 128, "kv": 128, "d": 128},
    "batch_gemm": {"b": 1, "m": 256, "k": 128},
    "conv3d": {"slices": 1},
}


def compare(case: Case, executor: str) -> None:
    """Require equal cycles, halts, counters and values on the max-plus and the wavelet executor."""
    solved, stepped = (
        run.run_program(case.program, case.config, executor=name, inputs=case.inputs)
        for name in (executor, "wavelet")
    )
    assert solved.executor == "max-plus"
    assert (solved.deadlock, stepped.deadlock) == (None, None)
    assert differences(solved, stepped, tuple(case.program.buffers)) == []


def large_case(name: str) -> Case:
    """Return the kernel on 128 x 128 cores, with sizes that are its defaults or a power of two larger."""
    command, wafer = find(name), load_wafer("wse2")
    default = command.read({})
    sizes = [key for key, value in default.items() if type(value) is int and value >= 16 and key not in SIDES]
    sides = dict.fromkeys(SIDES & set(default), 128)
    for factor in (1, 2, 4, 8):
        grown = {key: factor * default[key] for key in sizes}
        with contextlib.suppress(KernelError, ProgramError):
            return command.build(command.read({**grown, **sides, **GIVEN.get(name, {})}), wafer)
    raise AssertionError(f"{name}: no size fits 128 x 128 cores; add one to GIVEN")


@pytest.mark.thinned(42)
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_the_same_on_both(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run at their default size; all programs count as large ones."""
    monkeypatch.setattr(run, "EXECUTORS", (run.Listed(MaxPlus(Wavelet()), from_cores=0), *run.EXECUTORS[1:]))
    command = find(name)
    compare(command.build(command.read({}), load_wafer("wse2")), "auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in BOUNDED])
def test_a_large_kernel_is_the_same_on_both(name: str) -> None:
    """Kernels run on as many cores as `auto` needs to select the executor for large programs."""
    case = large_case(name)
    assert case.program.n_cores >= run.EXECUTORS[0].from_cores
    compare(case, "auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_choice_of_a_kernel_is_the_same_on_both(name: str) -> None:
    """Mappings, algorithms, phases, precisions and operations of the command are changed one at a time."""
    command = find(name)
    for parameter in command.params:
        for choice in parameter.choices:
            case = None
            with contextlib.suppress(
                KernelError, ProgramError
            ):  # not every phase exists and fits on every mapping
                case = command.build(command.read({parameter.name: choice}), load_wafer("wse2"))
            if case is not None:
                compare(case, "max-plus")


def test_an_embedding_on_a_large_rectangle_ends() -> None:
    """Its rows are sent on by switches that turn outputs, in 389 cycles; it was once reported as a deadlock."""
    command = find("embedding")
    case = command.build(command.read({"rows": 128, "cols": 128, "n": 256, "vocab": 32}), load_wafer("wse2"))
    compare(case, "auto")
