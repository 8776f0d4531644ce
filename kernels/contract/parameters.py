"""Declarations of the sizes and attributes that a kernel may state: name, type, range, default, meaning.

A family declares its sizes (:func:`sizes`) and its attributes (a dataclass whose fields are made by
:func:`attribute`). These declarations provide the checks of a graph, the values that the family's methods
read (:meth:`Attributes.of`), the parameters of the command line and the tables of the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar, cast

from wse_sim.errors import KernelError
from wse_sim.files import is_plain_number
from wse_sim.graph import Attr

V = TypeVar("V", str, int, float, bool)

HALF_SUMS = ("fp16", "bf16", "cbfloat16")
"""Types of sums that have 16 bits; the others are fp32."""
MOST_SIZE = 10**7
"""Largest integer that a command line accepts for a dimension or a count."""


@dataclass(frozen=True)
class Parameter:
    """A size or an attribute; its type is that of its default, with a range for numbers and choices for
    words.

    Without an explicit range, integers start at 1 (at 0 if 0 is the default and means "the best"), and
    fractions are from 0 to 1.
    """

    name: str
    default: Attr
    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None

    @property
    def kind(self) -> type:
        """The type of its values."""
        return type(self.default)

    @property
    def is_pin(self) -> bool:
        """Whether it states where a kernel is placed instead of what it does."""
        return self.name.startswith("pin_")

    @property
    def is_layout(self) -> bool:
        """Whether it states where a kernel is placed, or how its words travel in a whole model, instead of what it does."""
        return self.is_pin or self.name in {item.name for item in fields(WordAttributes)}

    @property
    def is_common(self) -> bool:
        """Whether kernels of every family may state it."""
        return self.name in {item.name for item in fields(Attributes)}

    @property
    def low(self) -> float:
        """The smallest number."""
        if self.at_least is not None:
            return self.at_least
        return 0 if self.kind in (float, bool) or self.default == 0 else 1

    @property
    def high(self) -> float:
        """The largest number."""
        if self.at_most is not None:
            return self.at_most
        return 1 if self.kind is float else float("inf")

    @property
    def range(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return ", ".join(choice or '""' for choice in self.choices)
        if self.kind in (int, float):
            upper = "" if self.high == float("inf") else f" to {self.high:g}"
            return f"{self.low:g}{upper or ' and more'}"
        return "true, false" if self.kind is bool else "text"

    def fault(self, value: Attr) -> str:
        """Return what is wrong with a stated value: type, range or choice; "" if it is valid."""
        wanted = (int, float) if self.kind is float else self.kind
        if not isinstance(value, wanted) or (isinstance(value, bool) and self.kind is not bool):
            return f"is not of type {self.kind.__name__}; give one like {self.default!r}"
        if isinstance(value, (int, float)) and not self.low <= value <= self.high:
            return f"is out of range; it takes {self.range}"
        if self.choices and value not in self.choices:
            return f"is unknown; use {self.range}"
        return ""

    def read(self, value: object, kernel: str) -> Attr:
        """Return a command-line value converted to the parameter's type.

        Raises
        ------
        KernelError
            If it cannot be converted, is out of range or is not one of the choices.
        """
        if self.kind is bool and isinstance(value, str):
            if value.lower() not in {"true", "false", "1", "0", "yes", "no"}:
                raise KernelError(
                    f"kernel '{kernel}': {self.name}={value!r} is not a truth value; use true or false"
                )
            return value.lower() in {"true", "1", "yes"}
        try:
            if isinstance(value, str) and self.kind in (int, float) and not is_plain_number(value):
                raise ValueError
            read = cast(Attr, self.kind(value))
        except (TypeError, ValueError, OverflowError):
            raise KernelError(
                f"kernel '{kernel}': {self.name}={value!r} is not of type {self.kind.__name__}"
            ) from None
        if isinstance(value, bool) and self.kind is not bool:
            raise KernelError(f"kernel '{kernel}': {self.name}={value!r} is not of type {self.kind.__name__}")
        if self.kind is int:
            most = min(self.high, MOST_SIZE)
            if not self.low <= int(read) <= most or float(cast(float, value)) != read:
                raise KernelError(
                    f"kernel '{kernel}': {self.name}={value!r} is out of range; "
                    f"give an integer from {self.low:g} to {int(most):,}"
                )
        if self.kind is float and not self.low <= float(read) <= self.high:
            raise KernelError(f"kernel '{kernel}': {self.name}={value!r} is out of range; give {self.range}")
        if self.choices and read not in self.choices:
            raise KernelError(
                f"kernel '{kernel}': {self.name}='{read}' is unknown; use {', '.join(self.choices)}"
            )
        return read


def sizes(**meanings: str) -> Mapping[str, str]:
    """Declare the sizes of a family: names and meanings. Each size is an integer of at least 1."""
    return MappingProxyType(meanings)


def attribute(
    default: V,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
) -> V:
    """Declare a field of an :class:`Attributes` dataclass: default, meaning, and allowed values."""
    said = {"help": meaning, "choices": choices, "at_least": at_least, "at_most": at_most}
    return cast(V, field(default=default, metadata=said))


@dataclass(frozen=True)
class Attributes:
    """Attributes that a kernel of any family may state: the placement that the user wants; 0 and "" mean
    anywhere.

    Kernels with a whole-fabric layout also state the layout of their streams.
    """

    pin_rows: int = attribute(0, "rows of cores of its region")
    pin_cols: int = attribute(0, "columns of cores of its region")
    pin_region: str = attribute("", "stages of one name stay next to each other")
    pin_replicas: int = attribute(0, "copies of the whole pipeline")
    link_words: int = attribute(
        0,
        "words of a sample on the busiest link of its streams, as in a whole model on the fabric; 0: not given",
    )
    most_bundles: int = attribute(0, "most parallel streams of its operands; 0: not given")
    most_results: int = attribute(0, "most parallel streams of its result; 0: not given")
    least_bundles: int = attribute(
        0, "fewest parallel streams of its operands and result, which other kernels need; 0: not given"
    )
    least_results: int = attribute(0, "fewest parallel streams of its result alone; 0: not given")
    held_samples: int = attribute(
        0, "in training, samples in flight for which its cores have room; 0: those of alternating passes"
    )
    readers: int = attribute(
        1, "in training, kernels that read its result: a core next to its region sums their gradients"
    )

    @classmethod
    def of(cls, *stated: Mapping[str, object] | None) -> Self:
        """Return the attributes with declared types; if several mappings state one, the first mapping wins.

        Attributes that the class does not declare are ignored, so blocks of several families can read what
        they share.
        """
        known, given = parameters_of(cls), dict[str, Any]()
        for mapping in reversed(stated):
            if mapping:
                given.update({name: value for name, value in mapping.items() if name in known})
        return cls(**given)


class Bundles(NamedTuple):
    """Parallel streams of a tensor: `least` to `most`, of tokens of `of_token` words; each has a part of every
    token. `unit` words stay together in a stream and on a core. `streams`: tensors that share a link, if there are more of
    them than operands. `stores`: rows of the cores of a stream that store an operand which comes early. `kept`: in training, bytes
    of SRAM for each element of a core, of samples in flight. `shared`: operands with one pixel, which all pixels of an image
    meet."""

    most: int
    of_token: int
    least: int = 1
    unit: int = 1
    streams: int = 0
    stores: int = 0
    kept: int = 0
    shared: int = 0


def spaced(counts: Sequence[int], dense: int = 16, step: float = 1.125) -> list[int]:
    """Return the numbers of parallel streams, of ascending `counts`, that are tried: all up to `dense`, then
    those that are `step` times the one before, and the last.

    >>> spaced(range(10, 30))
    [10, 11, 12, 13, 14, 15, 16, 18, 21, 24, 27, 29]
    """
    out: list[int] = []
    for count in counts:
        if count <= dense or not out or count >= step * out[-1] or count == counts[-1]:
            out.append(count)
    return out


@dataclass(frozen=True)
class WordAttributes(Attributes):
    """Attributes of families whose cores may have whole words."""

    in_words: bool = attribute(False, "each core receives and sends whole words")
    token_words: int = attribute(0, "words of a token, divided among its parallel streams; 0: not given")
    unit_words: int = attribute(1, "words of a token that stay together on a core")
    shared_inputs: int = attribute(0, "in words, operands with one pixel, which all pixels of an image meet")
    kept_bytes: int = attribute(
        0, "in training, bytes of SRAM for each element of a core, which samples in flight need; 0: not given"
    )

    @property
    def bundles(self) -> Bundles | None:
        """Parallel streams of whole words; None if elements have no fixed layout."""
        if not self.in_words:
            return None
        most = self.most_bundles if self.token_words else 1
        return Bundles(
            most,
            self.token_words,
            self.least_bundles,
            self.unit_words,
            kept=self.kept_bytes,
            shared=self.shared_inputs,
        )

    @property
    def gradient_bundles(self) -> Bundles | None:
        """The same in the backward pass, in which a core sums the gradients of all readers."""
        return None if self.bundles is None else self.bundles._replace(streams=self.readers)


_DECLARED: dict[type[Attributes], Mapping[str, Parameter]] = {}


def parameters_of(kind: type[Attributes]) -> Mapping[str, Parameter]:
    """Return the declarations of an attribute class, by name."""
    if kind not in _DECLARED:
        found = {}
        for item in fields(kind):
            said: Mapping[str, Any] = item.metadata or {"help": ""}
            found[item.name] = Parameter(item.name, cast(Attr, item.default), **said)
        _DECLARED[kind] = MappingProxyType(found)
    return _DECLARED[kind]


@dataclass(frozen=True)
class ProductAttributes(Attributes):
    """Attributes of all products."""

    accumulate: str = attribute(
        "", "type of the sums; empty: fp32, on a grid fp16", choices=("", "fp32", *HALF_SUMS)
    )
    fused: str = attribute("", "work on the results, comma-separated: bias, residual, scale, one activation")


@dataclass(frozen=True)
class WeightAttributes(ProductAttributes):
    """Attributes of all products with weights."""

    weights: str = attribute(
        "", "int8: one byte each; frozen: they do not train", choices=("", "int8", "frozen")
    )
    density: float = attribute(1.0, "fraction of nonzero weights")
    orientation: str = attribute(
        "best", "stationary: inner dimension over rows (kn) or columns (nk)", choices=("best", "kn", "nk")
    )
    pin_parts_in: int = attribute(0, "parts of the input features, over the rows of its region")
    pin_parts_out: int = attribute(0, "parts of the output features, over the columns")
