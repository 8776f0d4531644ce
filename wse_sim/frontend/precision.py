"""Precision: a half type and a level, which are independent settings.

The half type (fp16, bf16, cbfloat16) is the 16-bit format of activations and of the operands of products. The
level determines which sums are fp32:

=====  =======================  =======================  ==============================
level  sums of products         sums of attention        norms, softmax, losses, means
=====  =======================  =======================  ==============================
0      fp32                     fp32                     computed in fp32
1      fp32 (mixed products)    fp32                     computed in the half type
2      the half type            the half type            computed in the half type
=====  =======================  =======================  ==============================

Weights are stored in fp32 for training and in the half type for inference. Integer weights (PT2E, torchao)
keep their 8 bits. Named precisions are pairs: ``mixed`` = (fp16, 1), ``fp16`` = (fp16, 2), ``bf16`` = (bf16,
1), ``cbfloat16`` = (cbfloat16, 1); ``fp32`` has no half type. Any other pair is written ``TYPE:LEVEL``
("cbfloat16:0"); a level alone is one of fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.errors import ConfigError

HALF_TYPES = ("fp16", "bf16", "cbfloat16")
LEVELS = (0, 1, 2)
_NAMED = {
    "mixed": ("fp16", 1),
    "fp16": ("fp16", 2),
    "bf16": ("bf16", 1),
    "cbfloat16": ("cbfloat16", 1),
    "fp32": ("fp32", 1),
}
_FLOATS = ("fp16", "bf16", "fp32", "fp64", "complex64", "complex128")
_INTEGERS = {"int64": "int32", "int16": "int32", "int32": "int32", "int8": "int8", "bool": "bool"}


@dataclass(frozen=True)
class Precision:
    """A half type (`compute`, or "fp32") and a level."""

    compute: str = "fp16"
    level: int = 1

    @property
    def name(self) -> str:
        """``mixed``, ``bf16`` and so on; ``TYPE:LEVEL`` for pairs without a name."""
        named = {pair: name for name, pair in _NAMED.items()}
        return named.get((self.compute, self.level), f"{self.compute}:{self.level}")

    def computed(self, dtype: str) -> str:
        """Return the machine's type of an activation of torch's type `dtype`; indices have 32 bits."""
        return _INTEGERS.get(dtype, self.compute)

    def stored(self, dtype: str, training: bool) -> str:
        """Return the machine's type of a stored weight of torch's type `dtype`."""
        if dtype not in _FLOATS:
            return _INTEGERS.get(dtype, "fp32")
        return "fp32" if training else self.compute

    def kernel(self, sums_rows: bool) -> str:
        """Return the type in which a kernel computes; at level 0, kernels that sum over rows use fp32."""
        return "fp32" if self.level == 0 and sums_rows else self.compute

    def matrix_attrs(self, dtype: str) -> dict[str, str]:
        """Return the attributes of a product or of attention: the type of its sums."""
        if self.compute == "fp32":
            return {}
        return {"accumulate": "fp32" if self.level < 2 else self.compute}


def precision_of(value: str | int | Precision) -> Precision:
    """Return a precision from its name, its level (of fp16), or ``TYPE:LEVEL``.

    Raises
    ------
    ConfigError
        If there is no such type or level.
    """
    if isinstance(value, Precision):
        return value
    text = str(value)
    if text in _NAMED:
        return Precision(*_NAMED[text])
    half, colon, level = text.partition(":")
    if not colon:
        half, level = "fp16", text
    if half not in HALF_TYPES or level not in {str(n) for n in LEVELS}:
        raise ConfigError(
            f"precision '{value}' is unknown; use {', '.join(_NAMED)}, a level 0, 1, 2, or TYPE:LEVEL as cbfloat16:0"
        )
    return Precision(half, int(level))
