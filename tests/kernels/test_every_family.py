"""One test for every registered family: what it says about itself fits together."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wse_sim.bench.command import Call, find, kernel_commands
from wse_sim.errors import KernelError, ModelError
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind, frozen
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Attributes, Family, Kept, Tape, check_graph, check_kernel, family, load_families
from wse_sim.kernels.contract.registry import flops_of
from wse_sim.kernels.contract.testing import declared_bytes

ROOM = Path(__file__).parents[2] / "kernels"
SIDE = 4


def calls() -> dict[str, Call]:
    """Per family the call of its first command at its default sizes."""
    found: dict[str, Call] = {}
    for name in (*kernel_commands(), *load_families()):
        command = find(name)
        call = command.call(command.read({}))
        found.setdefault(call.family, call)
    return found


CALLS = calls()


def kernel_of(call: Call) -> Kernel:
    """The call as a kernel of a graph: two inputs, a weight, a result."""
    dims = frozen({name: int(size) for name, size in call.dims.items()})
    attrs = frozen({name: value for name, value in call.attrs.items() if name in stated(call.family)})
    return Kernel("k", call.family, dims, Phase.FORWARD, ("x", "z"), ("y",), ("w",), attrs, dtype="fp16")


def stated(name: str) -> dict[str, Any]:
    return family(name).attribute_defaults()


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


@pytest.mark.parametrize("name", sorted(CALLS))
def test_every_stated_attribute_is_read(name: str) -> None:
    """An attribute that no line of the family, of the blocks or of the front end's rules reads says nothing."""
    home = Path(*type(family(name)).__module__.split(".")[2:])
    folder = ROOM / home.parent
    own = folder.glob("*.py") if home.stem == "family" else [ROOM / f"{home}.py"]
    if "collectives" in home.parts:
        own = folder.glob("*.py")
    rules = [ROOM.parent / "wse_sim" / "frontend" / "fusions.py"]
    text = "\n".join(p.read_text(encoding="utf-8") for p in (*own, *(ROOM / "blocks").glob("*.py"), *rules))
    pins = {item.name for item in dataclasses.fields(Attributes)}
    for attribute in set(stated(name)) - pins - {"state_bytes"}:
        read = rf"""(attrs\.get\(|attrs, |attrs\[|in attrs|\.attrs\.get\()"{attribute}\""""
        assert re.search(read, text), f"nothing of '{name}' reads '{attribute}'"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_prices_are_finite_and_broadcast(name: str) -> None:
    """Footprint and cost are finite and not negative; of two rectangles at once they are those of each."""
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


def has_small_program(call: Call) -> bool:
    return int(call.tiling.rows) * int(call.tiling.cols) <= 64 and has_face(call.family, "program")


def has_face(name: str, face: str) -> bool:
    return getattr(type(family(name)), face) is not getattr(Family, face)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_samples_and_flops(name: str) -> None:
    """Rows fit the sizes; FLOPs are whole, not negative and double with the batch where there are any."""
    found, kernel = family(name), kernel_of(CALLS[name])
    flow = found.flow(kernel.dims, kernel.attrs)
    assert flow.rows == int(flow.rows) >= 0
    assert flow.rows == 0 or flow.rows in kernel.dims.values()
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
    shapes = {"x": (8, 8), "z": (8, 8), "y": (8, 8), "w": (8, 8)}
    kinds = {"w": TensorKind.PARAMETER, "y": TensorKind.OUTPUT}
    tensors = frozen(
        {n: Tensor(n, shape, "fp16", kinds.get(n, TensorKind.INPUT), n != "w") for n, shape in shapes.items()}
    )
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
