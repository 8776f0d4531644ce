"""Options, declared once: a field's type, default, range, unit and help are in one place.

One declaration yields the object that Python callers fill (:class:`RunOptions`), the options of the command
line, the table of the documentation, what a sweep and a validation point may state, and the check of every value.
An option of several declarations (a run, a mode, a training script) is its own type, as :data:`Batch` is.
A fault is one sentence with the value, the limit and the remedy, and it is raised before any work starts.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, SupportsIndex, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic import Field as PydanticField
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

from wse_sim.errors import ConfigError, ModelError, WseError
from wse_sim.files import looked_at
from wse_sim.hardware import Cluster, Wafer

MOST_COUNT = 10**9  # samples, tokens, steps: beyond it lies a slip of the keyboard, not a request
MOST_SYSTEMS = 10**5
MOST_THREADS = 1024
MOST_CORES = 10**6
MOST_SEED = 2**63 - 1


def _whole(value: object) -> int | None:
    """An integer: no truth value, no fraction, no text."""
    if value is None:
        return None
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise PydanticCustomError("whole", "not an integer")
    if isinstance(value, float):
        return int(value)
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        raise PydanticCustomError("whole", "not an integer") from None


def _real(value: object) -> float | None:
    """A finite number: no truth value, no text."""
    if value is None:
        return None
    if isinstance(value, bool | str | bytes):
        raise PydanticCustomError("number", "not a number")
    try:
        number = float(cast(float, value))
    except (TypeError, ValueError, OverflowError):
        raise PydanticCustomError("number", "not a number") from None
    if not math.isfinite(number):
        raise PydanticCustomError("finite", "not finite")
    return number


Whole = Annotated[int, BeforeValidator(_whole)]
Real = Annotated[float, BeforeValidator(_real)]
Kind = type[bool] | type[int] | type[float] | type[str] | type[Path]
Phase = Literal["training", "inference"]
Timing = Literal["model", "fabric"]
Timings = Literal["model", "fabric", "both"]
Writes = Literal["", "file", "folder"]


def option(
    default: object,
    text: str,
    *,
    unit: str = "",
    flag: str = "",
    remedy: str = "",
    writes: Writes = "",
    **limits: Any,
) -> Any:
    """A field of a declaration.

    `text` is the help; `limits` are those of pydantic (ge, gt, le, lt); `flag` names the option of the command line where it is not the
    field's name; `remedy` ends the sentence of a fault where the range alone does not say enough; `writes` says that the option names
    a file or a folder for results: a command claims it before its work.

    Example
    -------
    >>> class Room(Declared):
    ...     cores: int = option(4, "Cores along a side.", ge=1)
    >>> [(found.name, found.default, found.help) for found in Room.options()]
    [('cores', 4, 'Cores along a side.')]
    """
    extra: dict[str, Any] = {"unit": unit, "flag": flag, "remedy": remedy, "writes": writes}
    return PydanticField(default, description=text, json_schema_extra=extra, **limits)


about = functools.partial(option, PydanticUndefined)
"""An option without a default, for the type of an option that several declarations share."""


@dataclass(frozen=True)
class Option:
    """A declared option, from which the command line, the documentation and error messages are generated."""

    name: str
    type: Kind  # bool, int, float, str or Path: what a command line reads
    default: object
    help: str
    unit: str
    flag: str
    remedy: str
    choices: tuple[str, ...]
    limits: tuple[tuple[str, float], ...]  # (ge | gt | le | lt, number)
    optional: bool
    writes: Writes = ""

    @property
    def range(self) -> str:
        """The allowed values as text: "1 to 10", "above 0", "a or b"."""
        if self.choices:
            return (
                " or ".join((", ".join(self.choices[:-1]), self.choices[-1]))
                if len(self.choices) > 1
                else self.choices[0]
            )
        bound = dict(self.limits)
        low = f"{bound['ge']:,}" if "ge" in bound else f"above {bound['gt']:,}" if "gt" in bound else ""
        high = f"to {bound['le']:,}" if "le" in bound else f"below {bound['lt']:,}" if "lt" in bound else ""
        if low and high:
            return f"{low} {high}" if "le" in bound else f"{low} to {high}"
        return f"{low} or more" if low and "ge" in bound else low or high


class Declared(BaseModel):
    """Base of declarations: frozen, no unknown fields, one sentence per fault.

    Example
    -------
    >>> class Room(Declared):
    ...     cores: int = option(4, "Cores along a side.", ge=1)
    >>> Room().cores, Room(cores=9).replace(cores=2).cores
    (4, 2)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)
    fault: ClassVar[type[WseError]] = ConfigError
    """The exception class that is raised."""

    def __init__(self, **given: object) -> None:
        try:
            super().__init__(**given)
        except ValidationError as found:
            raise self.fault(self._sentence(found)) from None

    @field_validator("*")
    @classmethod
    def _can_be_looked_at(cls, value: object, info: ValidationInfo) -> object:
        """A path that the system cannot even look at is refused before any work."""
        if isinstance(value, Path):
            looked_at(value, str(info.field_name).replace("_", " "), cls.fault)
        return value

    @classmethod
    def options(cls) -> Iterator[Option]:
        """The options in the order in which they are declared."""
        for name, field in cls.model_fields.items():
            if field.description is not None:
                yield _read(name, field)

    def replace(self, **changes: object) -> Self:
        """A copy with other values, checked."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    @classmethod
    def _sentence(cls, found: ValidationError) -> str:
        first = found.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        known = {option.name: option for option in cls.options()}
        if first["type"] == "extra_forbidden":
            return f"option '{name}' is unknown; use some of {', '.join(known)}"
        if name not in known:
            return f"{name} {first['input']!r}: {first['msg']}"
        return sentence(known[name], first["input"], str(first["type"]))


def sentence(option: Option, value: object, kind: str) -> str:
    """A sentence about a wrong value, with the limit and the remedy."""
    shown = f"'{value}'" if isinstance(value, str) else f"{value}"
    words = option.name.replace("_", " ")
    if option.choices:
        return f"{words} {shown} is unknown; use one of {', '.join(option.choices)}"
    wrong = {
        "whole": "is not an integer",
        "number": "is not a number",
        "finite": "is not finite",
        "greater_than": "is too small",
        "greater_than_equal": "is too small",
        "less_than": "is too large",
        "less_than_equal": "is too large",
    }.get(kind, "is not usable")
    unit = f" {option.unit}" if option.unit else ""
    ask = option.remedy or (
        f"give {option.range}{unit}"
        if option.range
        else f"give {option.help[:1].lower()}{option.help[1:].rstrip('.')}"
    )
    return f"{words} {shown} {wrong}; {ask}"


def _read(name: str, field: FieldInfo) -> Option:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    kinds: list[Any] = []
    choices: list[str] = []
    pending: list[Any] = [field.annotation]
    while pending:
        kind = pending.pop(0)
        if get_origin(kind) is Annotated:
            pending.insert(0, get_args(kind)[0])
        elif get_origin(kind) is Literal:
            kinds.append(str)
            choices += [str(choice) for choice in get_args(kind)]
        elif get_args(kind):
            pending += get_args(kind)
        else:
            kinds.append(kind)
    plain = [kind for kind in (bool, int, float, Path, str) if kind in kinds]
    limits = tuple(
        (key, getattr(rule, key))
        for rule in field.metadata
        for key in ("ge", "gt", "le", "lt")
        if hasattr(rule, key)
    )
    return Option(
        name=name,
        type=plain[0] if plain else str,
        default=None if field.default is PydanticUndefined else field.default,
        help=str(field.description),
        unit=str(extra.get("unit", "")),
        flag=str(extra.get("flag") or "--" + name.replace("_", "-")),
        remedy=str(extra.get("remedy", "")),
        choices=tuple(choices),
        limits=limits,
        optional=type(None) in kinds,
        writes=str(extra.get("writes", "")),  # type: ignore[arg-type]
    )


# Options that several declarations share

WaferOption = Annotated[Wafer | str, about("Wafer by name, or a YAML file.")]
ClusterOption = Annotated[Cluster | str, about("Cluster by name, or a YAML file.")]
ClockOption = Annotated[
    Literal["nominal", "power-limited"],
    about("nominal, or power-limited: the lower clock that the wafer's file states for a limit of power."),
]
CacheOption = Annotated[
    Path | str | None, about('Folder of fabric measurements (default: the user\'s; "none" keeps none).')
]
BothTimings = Annotated[Timings, about("model (formulas), fabric (programs that ran), or both, explained.")]
Batch = Annotated[Whole, about("Samples per step, over all systems.", unit="samples", ge=1, le=MOST_COUNT)]
Seq = Annotated[
    Whole | None, about("Sequence length (default: the model's).", unit="tokens", ge=1, le=MOST_COUNT)
]
MicroBatch = Annotated[
    Whole | None, about("Samples per micro-batch (weight streaming).", unit="samples", ge=1, le=MOST_COUNT)
]
ChooseMicroBatch = Annotated[
    Literal["no-spill", "largest", "search"],
    about(
        "How --micro-batch is chosen (weight streaming): no-spill (the largest that fits; where its activations leave the wafer, "
        "a smaller one if that is faster), largest (that fits, as published runs show) or search (the fastest of twelve divisors)."
    ),
]
Lanes = Annotated[
    Whole | None,
    about("Copies of a layer inside the wafer (weight streaming).", unit="copies", ge=1, le=MOST_CORES),
]
Recompute = Annotated[
    Literal["none", "attention", "full"] | None,
    about(
        "none, attention (its scores only) or full (default: the least with which activations fit into SRAM)."
    ),
]
Schedule = Annotated[
    Literal["1f1b", "gpipe"] | None,
    about(
        "1f1b (forward and backward passes alternate) or gpipe (all samples of a batch forward first) (pipelined training; default: "
        "1f1b, or the rounds of the fabric's programs where these price the plan)."
    ),
]
Density = Annotated[Real, about("Fraction of nonzero weights (weight streaming).", gt=0, le=1)]
Send = Annotated[
    str | None,
    about(
        "Results that leave the wafer in inference: everything, last (position), top:K (of every position) or loss "
        "(default: last where tokens go in, else everything)."
    ),
]
JitterSeed = Annotated[Whole, about("Seed of random draws.", ge=0, le=MOST_SEED)]
StorageRate = Annotated[Real, about("Rate of the storage behind checkpoints.", unit="GB/s", gt=0, le=10**9)]


class RunOptions(Declared):
    """Options of a run; the defaults are those of the command line.

    Example
    -------
    >>> RunOptions(mode="pipelined", batch=64).replace(batch=128).batch
    128
    >>> RunOptions(batch=0)
    Traceback (most recent call last):
        ...
    wse_sim.errors.ModelError: batch 0 is too small; give 1 to 1,000,000,000 samples
    """

    fault: ClassVar[type[WseError]] = ModelError
    of_modes: ClassVar = (
        "micro_batch",
        "lanes",
        "recompute",
        "schedule",
        "density",
        "send",
        "choose_micro_batch",
    )
    """Options that go to the compiler of a mode; a mode declares those of them that it has."""

    mode: str = option(
        "auto",
        "pipelined (over several systems: a chain of wafers), weight-streaming, auto (the fastest that the machine's software offers), or your own package.module:NAME.",
    )
    phase: Phase = option("training", "training or inference.")
    batch: Batch = 112
    seq: Seq = None
    wafer: WaferOption = "wse2"
    cluster: ClusterOption = "default"
    clock: ClockOption = "nominal"
    systems: Whole = option(
        1,
        "Wafers that share the batch (weight streaming) or the blocks (pipelined).",
        unit="systems",
        ge=1,
        le=MOST_SYSTEMS,
    )
    micro_batch: MicroBatch = None
    choose_micro_batch: ChooseMicroBatch = "no-spill"
    lanes: Lanes = None
    recompute: Recompute = None
    schedule: Schedule = None
    density: Density = 1.0
    send: Send = None
    optimizer: Literal["sgd", "momentum", "adam", "adamw"] = option("adamw", "sgd, momentum, adam or adamw.")
    train: str | None = option(
        None, "Patterns of the parameters that train, e.g. '*.ln_*,lm_head' (default: as set in the model)."
    )
    lora: Whole | None = option(
        None, "Rank of adapters added to linear layers; everything else is frozen.", ge=1, le=MOST_CORES
    )
    lora_on: str | None = option(
        None, "Patterns of the linear layers with an adapter (default: those of attention)."
    )
    precision: str = option("mixed", "mixed, fp16, bf16, cbfloat16, fp32, a level 0, 1, 2, or TYPE:LEVEL.")
    timing: Timing = option("model", "model (formulas) or fabric (programs that ran).")
    cache: CacheOption = None
    jitter: Real = option(0.0, "Relative spread of an input worker's time per sample.", ge=0, lt=1)
    skew: Real = option(
        0.0,
        "Relative spread of the systems' times per step (weight streaming): the all-reduce waits for the slowest.",
        ge=0,
        lt=1,
    )
    seed: JitterSeed = 0
    checkpoint_steps: Whole | None = option(
        None, "Write the state every N steps (training).", unit="steps", ge=1, le=MOST_COUNT
    )
    checkpoint_gbytes_per_s: StorageRate = 10.0
    # For callers in Python alone: no help, so no option of a command.
    interval: float | None = None  # bounds of every number that hold the true one with this probability, in %
    interval_workers: int = 1  # processes that price the draws
    interval_replans: bool = False  # compile again at every draw of the constants
    model_options: Mapping[str, Any] = PydanticField(default_factory=dict)
    mode_options: Mapping[str, Any] = PydanticField(default_factory=dict)  # those that only one mode has


class GenerationChoice(Declared):
    """Options of the generation mode; `grid` None uses the fastest that fits, `prompt` None the whole context."""

    fault: ClassVar[type[WseError]] = ModelError

    batch: Whole = option(1, "Concurrent requests.", unit="requests", ge=1, le=MOST_COUNT)
    prompt: Whole | None = option(
        None, "Tokens of a prompt (default: the context).", unit="tokens", ge=1, le=MOST_COUNT
    )
    grid: Whole | None = option(
        None, "Rows of a region (default: the fastest region that fits).", unit="cores",
        ge=1, le=MOST_CORES,
    )  # fmt: skip
    grid_cols: Whole | None = option(
        None, "Columns of a region (default: as many as rows).", unit="cores", ge=1, le=MOST_CORES
    )
    groups: Whole | None = option(
        None, "Groups of an all-reduce (default: about the square root).", unit="groups", ge=1, le=MOST_CORES
    )
    chunk: Whole | None = option(
        None,
        "Tokens per chunk of a prompt (default: the earliest first token that keeps half the cache of chunks of 4).",
        unit="tokens", ge=1, le=MOST_COUNT,
    )  # fmt: skip
    weights_bits: Literal["16", "8", "4"] = option(
        "16", "Bits of a resident weight of a layer; 8 and 4 bits are unpacked once per turn."
    )
    experts: str = option(
        "uniform",
        "Experts that tokens take: uniform, identical (all tokens the same) or table:FILE of loads.",
    )
    expert_layout: Literal["spread", "apart"] = option(
        "spread", "Where experts are: spread (each on all cores) or apart (each on its own cores)."
    )


class GenerationOptions(GenerationChoice):
    """Options of a generation run: those of the mode, the context and the machine.

    Example
    -------
    >>> GenerationOptions(batch=4, prompt=512).prompt
    512
    """

    context: Whole = option(4096, "Tokens in the cache of a request.", unit="tokens", ge=1, le=MOST_COUNT)
    systems: Whole = option(1, "Wafers that share the layers.", unit="systems", ge=1, le=MOST_SYSTEMS)
    wafer: WaferOption = "wse2"
    cluster: ClusterOption = "default"
    clock: ClockOption = "nominal"


class KernelOptions(Declared):
    """Options of a kernel run; the kernel's own parameters are declared by its command.

    Example
    -------
    >>> KernelOptions(rows=4, cols=8).rows
    4
    """

    rows: Whole | None = option(None, "Rows of cores (as --param rows=).", unit="cores", ge=1, le=MOST_CORES)
    cols: Whole | None = option(
        None, "Columns of cores (as --param cols=).", unit="cores", ge=1, le=MOST_CORES
    )
    wafer: WaferOption = "wse2"
    executor: str = option("auto", "auto, oracle, wavelet, max-plus or gpu.")
    threads: Whole = option(1, "Threads that step the fabric.", unit="threads", ge=1, le=MOST_THREADS)
    timing: Timings = option("both", "model, fabric or both.")
