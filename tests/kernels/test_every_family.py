"""One test for every registered family: its statements are consistent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from wse_sim.bench.command import find, kernel_commands
from wse_sim.bench.contract import KernelRequest
from wse_sim.errors import KernelError, ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind, frozen
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Attributes, Family, Kept, Tape, check_graph, check_kernel, family, load_families
from wse_sim.kernels.contract.registry import flops_of
from wse_sim.kernels.contract.testing import check_faces, declared_bytes

SIDE = 4


def every_call() -> dict[str, list[KernelRequest]]:
    """Return, per family, the calls of all of its commands at their default sizes."""
    found: dict[str, list[KernelRequest]] = {}
    for name in (*kernel_commands(), *load_families()):
        command = find(name)
        call = command.call(command.read({}))
        found.setdefault(call.family, []).append(call)
    return found


EVERY_CALL = every_call()
CALLS = {name: calls[0] for name, calls in EVERY_CALL.items()}


def kernel_of(call: KernelRequest) -> Kernel:
    """Return the call as a kernel of a graph: two inputs, a weight, a result."""
    dims = frozen({name: int(size) for name, size in call.dims.items()})
    attrs = frozen({name: value for name, value in call.attrs.items() if name in stated(call.family)})
    return Kernel("k", call.family, dims, Phase.FORWARD, ("x", "z"), ("y",), ("w",), attrs, dtype="fp16")


def tensors_of(kernel: Kernel) -> Mapping[str, Tensor]:
    """Return the tensors of :func:`kernel_of`."""
    kinds = {"w": TensorKind.PARAMETER, "y": TensorKind.OUTPUT}
    names = (*kernel.inputs, *kernel.outputs, *kernel.parameters)
    return frozen({n: Tensor(n, (8, 8), "fp16", kinds.get(n, TensorKind.INPUT), n != "w") for n in names})


def stated(name: str) -> dict[str, Any]:
    return {item.name: item.default for item in family(name).parameters().values()}


def test_every_family_of_the_library_is_called_here() -> None:
    assert set(CALLS) == set(load_families())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_family_describes_itself(name: str) -> None:
    """Name, dimensions, mappings, docstrings; attributes have defaults of plain types and are the only ones taken."""
    found, call = family(name), CALLS[name]
    assert found.name == name
    assert found.dims
    assert found.mappings
    assert issubclass(found.attributes, Attributes)
    assert type(found).__doc__
    assert found.attributes.__doc__
    assert all(isinstance(value, (str, int, float, bool)) for value in stated(name).values())
    kernel = kernel_of(call)
    check_kernel(kernel)
    assert set(call.attrs) <= set(stated(name))
    with pytest.raises(KernelError, match=f"family '{name}' reads no attribute 'colour'; it reads"):
        check_kernel(dataclasses.replace(kernel, attrs=frozen(colour="red")))
    with pytest.raises(KernelError, match=f"family '{name}' has no dimension 'depth'; it has"):
        check_kernel(dataclasses.replace(kernel, dims=frozen({**kernel.dims, "depth": 3})))
    with pytest.raises(KernelError, match="is missing; it takes at least 1"):
        check_kernel(dataclasses.replace(kernel, dims=frozen(dict(list(kernel.dims.items())[1:]))))


# Decoding, one query, has its own attributes.
MORE_CALLS = {
    "attention": [dataclasses.replace(CALLS["attention"], dims={**CALLS["attention"].dims, "q": 1})],
}


ALGORITHMS = ("", "two_phase", "k_tree", "summa", "rows_columns")


@contextmanager
def recorded(seen: set[str]) -> Iterator[None]:
    """Record which attributes are read; all reads pass the classes that declare them."""
    read = Attributes.__getattribute__

    def noted(self: Attributes, name: str) -> Any:
        seen.add(name)
        return read(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attributes, "__getattribute__", noted)
        yield


def reads_of(name: str) -> set[str]:
    """Return the attributes that any face of a family reads, over all of its commands, mappings and phases."""
    seen = set[str]()
    with recorded(seen):
        ask_all(name)
    return seen


SWITCHES: dict[str, str | bool] = {"line": "k_tree", "pairs": True, "word_rows": True, "trained_rows": True}
"""Attributes whose other value makes a face read more of them."""


def ask_all(name: str) -> None:
    """Call every face of a family, also with every switch turned."""
    for switch in (None, *(set(SWITCHES) & set(stated(name)))):
        ask_faces(name, {} if switch is None else {switch: SWITCHES[switch]})


def ask_faces(name: str, turned: dict[str, str | bool]) -> None:
    """Call every face of a family, with some attributes as in `turned`."""
    found, wafer = family(name), load_wafer("wse2")
    for call in (*EVERY_CALL[name], *MORE_CALLS.get(name, ())):
        attrs = {**stated(name), **turned}
        kernel = dataclasses.replace(kernel_of(call), attrs=frozen(attrs))
        tensors = tensors_of(kernel)
        found.flops(call.dims, attrs, Phase.FORWARD)
        found.flow(call.dims, attrs)
        found.is_affine(attrs)
        found.link(attrs)
        found.notes(attrs)
        found.has_gradient(kernel)
        found.keeps(kernel, frozenset(tensors), tensors)
        # An option or algorithm of the tiling comes before the attribute of that name.
        ways = [
            dataclasses.replace(call.tiling, mapping=way, algorithm=algorithm, options={})
            for way in found.mappings
            for algorithm in ALGORITHMS
        ]
        for tiling in ways:
            for phase in Phase:
                faces = [found.footprint, found.cost, found.probes]
                same = tiling.mapping == call.tiling.mapping and not tiling.algorithm and phase is call.phase
                if same and has_small_program(call):
                    faces.append(found.program)
                for face in faces:
                    with suppress(KernelError):  # not every phase and algorithm exists on every mapping
                        face(call.dims, tiling, wafer, phase=phase, dtype=call.dtype, attrs=attrs)
        if has_face(name, "gradients"):
            tape = Tape(KernelGraph("one", (kernel,), tensors), frozenset(tensors), flops_of)
            found.gradients(kernel, tape.gradient("y"), tape)


# Read by plans, and by a whole model on the fabric, not by a face of the family.
READ_BY_PLANS = {
    "state_bytes",
    "pin_parts_in",
    "pin_parts_out",
    "packed",
    "laps",
    "scale",
    "unusual",
    "around",
    "uneven",
    "unfolded",
    "together",
    "spare",
    "unread",
    "apart",
    "trains",
    "numbers",
    "has_bias",
    "met",
    "finished",
    "layers",
    "passes_on",
    "token_words",
    "unit_words",
    "kept_bytes",
    "shared_inputs",
    "eps",
}


@pytest.mark.thinned(38)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_stated_attribute_is_read(name: str) -> None:
    """An attribute that no face of its family reads has no meaning."""
    pins = {item.name for item in dataclasses.fields(Attributes)}
    assert set(stated(name)) - pins - READ_BY_PLANS <= reads_of(name)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_stated_default_changes_nothing(name: str) -> None:
    """The defaults of the attributes are those of the prices: stating one changes nothing."""
    found, wafer = family(name), load_wafer("wse2")
    for call in EVERY_CALL[name]:
        full = {**stated(name), **call.attrs}
        how = {"phase": call.phase, "dtype": call.dtype}
        for face in (found.cost, found.footprint):
            bare = face(call.dims, call.tiling, wafer, **how, attrs=call.attrs)
            assert face(call.dims, call.tiling, wafer, **how, attrs=full) == bare
        assert found.flops(call.dims, full, call.phase) == found.flops(call.dims, call.attrs, call.phase)
        assert found.flow(call.dims, full) == found.flow(call.dims, call.attrs)


@pytest.mark.thinned(37)
@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_faces_of_every_family_agree(name: str) -> None:
    """Each small command of a family: values of its program, cycles within its band, SRAM within its footprint.

    What the program reads and what it leaves are tensors of the graph, whose bytes the compiler counts.
    """
    found, wafer = family(name), load_wafer("wse2")
    checked = 0
    for call in EVERY_CALL[name]:
        if not has_small_program(call):
            continue
        how = {"phase": call.phase, "dtype": call.dtype, "attrs": call.attrs}
        case = found.program(call.dims, call.tiling, wafer, **how)
        tensors = {*case.inputs, *case.expected}
        at_rest = sum(b.length * b.element_bytes for n, b in case.program.buffers.items() if n in tensors)
        check_faces(found, call.dims, call.tiling, wafer, band=found.band, resident_bytes=at_rest, **how)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", sorted(CALLS))
def test_prices_are_finite_and_broadcast(name: str) -> None:
    """Footprint and cost are finite and not negative; for two rectangles at once they equal those of each."""
    found, call, wafer = family(name), CALLS[name], load_wafer("wse2")
    how = {"phase": call.phase, "dtype": call.dtype, "attrs": call.attrs}
    cost = found.cost(call.dims, call.tiling, wafer, **how)
    assert all(np.isfinite(part) and part >= 0 for part in map(float, cost.parts().values()))
    assert float(cost.total) > 0
    assert float(found.footprint(call.dims, call.tiling, wafer, **how).total_bytes) > 0
    case = found.program(call.dims, call.tiling, wafer, **how, seed=0) if has_small_program(call) else None
    if case is not None:
        assert declared_bytes(case.program) > 0
        assert set(case.inputs) | set(case.expected) <= set(case.program.buffers)
    if call.tiling.mapping in {"stationary", "streamed"}:
        two = dataclasses.replace(call.tiling, rows=np.array([4, 8]), cols=np.array([4, 8]), lanes=1)
        both = np.broadcast_to(np.asarray(found.cost(call.dims, two, wafer, **how).total), (2,))
        for i, side in enumerate((4, 8)):
            one = dataclasses.replace(call.tiling, rows=side, cols=side, lanes=1)
            assert both[i] == pytest.approx(float(found.cost(call.dims, one, wafer, **how).total))


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_grid_costs_what_its_rectangles_cost(name: str) -> None:
    """Rows in a column against columns in a row give, bit for bit, the prices of the list of all pairs."""
    found, wafer = family(name), load_wafer("wse2")
    rows, cols = np.array([4, 9, 40]), np.array([4, 6, 8, 33])
    for call in EVERY_CALL[name]:
        if call.tiling.mapping not in {"stationary", "streamed"}:
            continue
        how = {"phase": call.phase, "dtype": call.dtype, "attrs": call.attrs}
        grid = dataclasses.replace(call.tiling, rows=rows[:, None], cols=cols[None, :], lanes=1)
        pairs = dataclasses.replace(call.tiling, rows=rows.repeat(4), cols=np.tile(cols, 3), lanes=1)
        for price in (
            lambda tiling: found.cost(call.dims, tiling, wafer, **how).parts(),  # noqa: B023
            lambda tiling: vars(found.footprint(call.dims, tiling, wafer, **how)),  # noqa: B023
        ):
            listed = price(pairs)
            for part, value in price(grid).items():
                together = np.broadcast_to(np.asarray(value), (3, 4)).ravel()
                assert np.array_equal(together, np.broadcast_to(np.asarray(listed[part]), 12)), part


def has_small_program(call: KernelRequest) -> bool:
    return int(call.tiling.rows) * int(call.tiling.cols) <= 256 and has_face(call.family, "program")


def has_face(name: str, face: str) -> bool:
    return getattr(type(family(name)), face) is not getattr(Family, face)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_samples_and_flops(name: str) -> None:
    """Rows match the sizes; FLOPs are integers, not negative, and double with the batch where there are any."""
    found, kernel = family(name), kernel_of(CALLS[name])
    flow = found.flow(kernel.dims, kernel.attrs)
    assert flow.rows == int(flow.rows) >= 0
    lines = {a * b for a, b in combinations((1, *kernel.dims.values()), 2)}  # lines, or lines of slices
    assert flow.rows == 0 or flow.rows in lines
    flops = found.flops(kernel.dims, kernel.attrs)
    assert flops == int(flops) >= 0
    sample = next((d for d in ("b", "m", "batch") if d in found.dims), None)
    if flops and sample:
        twice = frozen({**kernel.dims, sample: 2 * kernel.dims[sample]})
        assert found.flops(twice, kernel.attrs) == 2 * flops
    if flow.skips_zero_weights or found.widens(Phase.FORWARD):
        assert flops > 0


@pytest.mark.parametrize("name", sorted(CALLS))
def test_training(name: str) -> None:
    """Gradient kernels that a family writes are kernels that families accept; what it keeps exists."""
    kernel = kernel_of(CALLS[name])
    tensors = tensors_of(kernel)
    graph = KernelGraph("one", (kernel,), tensors)
    kept = family(name).keeps(kernel, frozenset(("x", "z", "w", "y")), tensors)
    assert isinstance(kept, Kept)
    assert set(kept.tensors) <= set(tensors)
    assert kept.again_bytes >= 0 <= kept.own_bytes
    tape = Tape(graph, frozenset(("x", "z", "w", "y")), flops_of)
    if not has_face(name, "gradients"):
        with pytest.raises(ModelError, match=f"family '{name}' has no gradient"):
            family(name).gradients(kernel, tape.gradient("y"), tape)
        return
    family(name).gradients(kernel, tape.gradient("y"), tape)
    assert tape.kernels
    check_graph(KernelGraph("back", tuple(tape.kernels), frozen(tape.tensors)))
    for item in tape.kernels:
        assert item.forward == "k"
        assert item.phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
        assert item.saved_bytes == 0
