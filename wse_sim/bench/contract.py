"""Interface of a kernel that is run by name: its parameters, and the family call that they define."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wse_sim.errors import KernelError
from wse_sim.graph import Attr, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Case, Cost, Tiling
from wse_sim.kernels.contract.parameters import Parameter
from wse_sim.kernels.contract.registry import family


def stated(name: str, attribute: str, default: Attr | None = None, **other: Any) -> Parameter:
    """An attribute of a family as a parameter of a command: as declared, with another default or other choices."""
    found = family(name).parameters()[attribute]
    return replace(found, default=found.default if default is None else default, **other)


@dataclass(frozen=True)
class KernelRequest:
    """A call of a kernel family."""

    family: str
    dims: Mapping[str, int]
    tiling: Tiling
    dtype: str = "fp32"
    attrs: Mapping[str, Any] = field(default_factory=dict)
    phase: Phase = Phase.FORWARD


@dataclass(frozen=True)
class KernelCommand:
    """A kernel that can be run by name."""

    name: str
    summary: str
    params: tuple[Parameter, ...]
    call: Callable[[Mapping[str, Any]], KernelRequest]

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, typed, defaults filled in; `cols` also names the `cores` of a line.

        Raises
        ------
        KernelError
            If a parameter is unknown or does not read.
        """
        known = {parameter.name: parameter for parameter in self.params}
        values = {parameter.name: parameter.default for parameter in self.params}
        for name, value in given.items():
            key = "cores" if name == "cols" and "cols" not in known and "cores" in known else name
            key = "words" if key == "wavelets" and "wavelets" not in known else key
            if key not in known:
                raise KernelError(
                    f"kernel '{self.name}' has no parameter '{name}'; it has {', '.join(sorted(known))}"
                )
            if value is not None:
                values[key] = known[key].read(value, self.name)
        return values

    def build(self, given: Mapping[str, Any], wafer: Wafer, seed: int = 0) -> Case:
        """The fabric program with inputs and reference values."""
        call = self.call(self.read(given))
        found: Case = family(call.family).program(
            call.dims, call.tiling, wafer, dtype=call.dtype, attrs=call.attrs, phase=call.phase, seed=seed
        )
        return found

    def model_cycles(self, given: Mapping[str, Any], wafer: Wafer) -> Cost:
        """The cost in closed form."""
        call = self.call(self.read(given))
        found: Cost = family(call.family).cost(
            call.dims, call.tiling, wafer, dtype=call.dtype, attrs=call.attrs, phase=call.phase
        )
        return found

    def flops(self, given: Mapping[str, Any]) -> int:
        """FLOPs of the call."""
        call = self.call(self.read(given))
        return int(family(call.family).flops(call.dims, call.attrs, call.phase))
