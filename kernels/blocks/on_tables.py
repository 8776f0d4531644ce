"""Base class of families whose work is described once (:mod:`wse_sim.kernels.contract.element_work`).

Mapping: units over all cores of the rectangle, n elements per core; on the whole fabric whole units.

    T = starts o + n / unit unit_cycles

In training the operand and its gradient enter over one link, with a control word after each sample.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from wse_sim.fabric.format.classes import Operand
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.probes import ELEMENTS, arrival_probes, pointwise_probe
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.element_work import WITH_TABLES, WITH_X, ElementWork, Floats, Held
from wse_sim.kernels.contract.equations import ceil_div, per_core, pointwise, words
from wse_sim.kernels.contract.family import (
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    How,
    Kept,
    Probe,
    ProgramOptions,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import WordAttributes, attribute, sizes


@dataclass(frozen=True)
class WorkAttributes(WordAttributes):
    """Attributes of work on elements."""

    trains: bool = attribute(False, "in words, in training: gradients replace values in memory")


class OnTables(OnElements):
    """A family that describes its work; the work determines values, cost and programs."""

    more_dims: Mapping[str, str] = sizes(rows="tokens of a sample", cols="features of a token")
    attributes = WorkAttributes
    rows_by = ("rows",)
    is_linear = True
    """Whether the gradient needs only the tables and the result's gradient."""

    @abstractmethod
    def work(self, dims: Dims, attrs: Attrs, dtype: str = "fp16") -> ElementWork:
        """Return the work of a core."""

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the instructions of the work."""
        phase, dtype, attrs = self.asked(tiling, how)
        work, stated = self.work(dims, attrs, dtype), WorkAttributes.of(attrs)
        cost = pointwise(
            dims["elements"],
            tiling,
            wafer,
            dtype=dtype,
            issue=work.unit_cycles(phase, wafer) / work.unit,
            instructions=work.starts(phase),
            bundles=stated.bundles,
        )
        if not (stated.trains and stated.in_words and tiling.mapping == "stationary"):
            return cost
        entry = wafer.wavelet_cycles * (words(dims["elements"], dtype) + 1)
        issued = cost.compute + cost.startup + cost.ramp
        return replace(cost, fabric=0.0 * issued, stalled_input=np.maximum(0.0, entry - issued))

    def compute(self, x: Array, *tables: Array, dtype: str = "fp32", **stated: int) -> Array:
        """Return the values of units (..., unit), with tables of the same shape; `stated` are dimensions and attributes."""
        work = self.work({"cols": np.shape(x)[-1], **stated}, stated, dtype)
        return _rounded(work, x, tables, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the work on every core, forward or backward, on small integers, which every precision represents exactly."""
        phase, dtype, attrs = asked(options, dtype="fp32")
        work = self.work(dims, attrs, dtype)
        n = work.unit * int(ceil_div(per_core(dims["elements"], tiling), work.unit))
        rows, cols = int(tiling.rows), int(tiling.cols)
        b, rng = new_builder(rows, cols, wafer), np.random.default_rng(options.get("seed", 0))
        units = (rows, cols, n // work.unit)
        inputs: dict[str, Floats] = {}

        def buffer(name: str, table: int | None = None) -> Operand:
            width = work.unit if table is None else work.table_width
            drawn = rng.integers(-4, 5, (*units, width)).astype(np.float32)
            held = drawn if table is None else work.table(table, drawn, work.unit)
            inputs[name] = held.reshape(rows, cols, n)
            return b.buffer(name, n, dtype, bank=WITH_X if table is None else WITH_TABLES).dsd()

        x, y = buffer("x"), buffer("y")
        names = [name.strip(".") for name in work.tables]
        tables = [buffer(name, number) for number, name in enumerate(names)]
        scratch = [b.buffer(f"scratch{i}", n, dtype, bank=bank).dsd() for i, bank in enumerate(work.scratch)]
        kind, rest = b.core_class("core"), Held(tables, scratch)
        if phase is Phase.FORWARD:
            work.forward(kind, y, x, rest, n)
        else:
            work.backward(kind, x, y, rest, n)
        b.place(kind, None)
        given = {name: value.reshape(*units, work.unit) for name, value in inputs.items()}
        held = [given[name] for name in names]
        if phase is Phase.FORWARD:
            expected = {"y": _rounded(work, given["x"], held, dtype)}
        else:
            expected = {"x": core.rounded(work.gradient_values(given["x"], given["y"], *held), dtype)}
        expected = {name: value.reshape(rows, cols, n) for name, value in expected.items()}
        largest = max(float(np.abs(value).max(initial=1.0)) for value in expected.values())
        return Case(b.build(), b.config, inputs, expected, (2e-5 if dtype == "fp32" else 4e-3) * largest)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on the units of one core, if they are few."""
        _, dtype, attrs = asked(how)
        work, cost = self.work(dims, attrs, dtype), self.cost(dims, tiling, wafer, **how)
        room = min(ELEMENTS, wafer.sram_usable_bytes // (4 * (2 + len(work.tables) + len(work.scratch))) - 8)
        most = 2 * work.unit * max(1, room // (2 * work.unit))
        stated = asked(how)._asdict()
        own = pointwise_probe("elements", self.name, dims["elements"], tiling, cost, **stated, most=most)
        own = replace(
            own, dims={**{name: size for name, size in dims.items() if name != "elements"}, **own.dims}
        )
        return (own, *arrival_probes(cost, dtype))

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the operand, unless the work is linear."""
        return Kept() if self.is_linear else Kept(kernel.inputs)


def _rounded(work: ElementWork, x: Array, tables: Sequence[Array], dtype: str) -> Array:
    """Return the values as the cores compute them: every result is rounded when it is stored."""

    def rounded(values: Array) -> Array:
        return core.rounded(np.asarray(values, np.float32), dtype)

    return rounded(work.values(rounded(x), *map(rounded, tables), rounded=rounded))
