"""Precision levels: how weights are stored and what products compute in.

==========  ======================  =================  ==============
name        stored in training      products           accumulation
==========  ======================  =================  ==============
mixed       fp32                    fp16               fp32
fp16        fp32                    fp16               fp16
bf16        fp32                    bf16               fp32
cbfloat16   fp32                    cbfloat16          fp32
fp32        fp32                    fp32               fp32
==========  ======================  =================  ==============

For inference weights are stored in the type of the products.  Level 0 is "mixed", level 1 "cbfloat16",
level 2 "fp16".  Integer weights (PT2E, torchao) keep their 8 bits under every level.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.errors import ConfigError

_LEVELS = {"0": "mixed", "1": "cbfloat16", "2": "fp16"}
_COMPUTE = {"mixed": "fp16", "fp16": "fp16", "bf16": "bf16", "cbfloat16": "cbfloat16", "fp32": "fp32"}
_FLOATS = ("fp16", "bf16", "fp32", "fp64")
_INTEGERS = {"int64": "int32", "int16": "int32", "int32": "int32", "int8": "int8", "bool": "bool"}


@dataclass(frozen=True)
class Precision:
    """A precision level by name."""

    name: str = "mixed"

    @property
    def compute(self) -> str:
        """Type of activations and of the operands of products."""
        return _COMPUTE[self.name]

    def computed(self, dtype: str) -> str:
        """Type on the machine of an activation of torch's type `dtype`; indices take 32 bits."""
        return _INTEGERS.get(dtype, self.compute)

    def stored(self, dtype: str, training: bool) -> str:
        """Type in which a weight of torch's type `dtype` is kept."""
        if dtype not in _FLOATS:
            return _INTEGERS.get(dtype, "fp32")
        return "fp32" if training else self.compute

    def matrix_attrs(self, dtype: str) -> dict[str, str]:
        """Attributes of a product: the type of its sums, where it is not that of its operands."""
        return {"accumulate": "fp32"} if self.name in ("mixed", "bf16", "cbfloat16") else {}


def precision_of(value: str | int | Precision) -> Precision:
    """A precision by name or level.

    Raises
    ------
    ConfigError
        If there is no such level.
    """
    if isinstance(value, Precision):
        return value
    name = _LEVELS.get(str(value), str(value))
    if name not in _COMPUTE:
        raise ConfigError(f"precision '{value}' is unknown; use {', '.join(_COMPUTE)} or a level 0, 1, 2")
    return Precision(name)
