"""Wafers: frozen, validated constants of one engine, each with its provenance.

A wafer file lists every constant as ``{value, unit, source, evidence}``.  The loaded
:class:`Wafer` carries plain numbers as attributes (``wafer.hop_cycles``) and the statements behind
them in ``wafer.provenance``.  ``base: wse2`` derives a wafer: only what differs is listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.hardware.constants import (
    Bytes,
    BytesPerSecond,
    Constant,
    ConstantSet,
    Count,
    Seconds,
    Unit,
    limits_of,
    no_dust,
    one_sentence,
    units_of,
)
from wse_sim.hardware.constants_cache import read_once
from wse_sim.hardware.scalar_costs import ScalarCosts
from wse_sim.serialize import saved
from wse_sim.view_registry import Displayed

Cycles = Annotated[float, Field(ge=0, le=1e9), AfterValidator(no_dust), Unit("cycles")]
Hertz = Annotated[float, Field(ge=1e-3, le=1e15), Unit("Hz")]
Rate = Annotated[float, Field(ge=1e-3, le=1e6), Unit("elements/cycle")]
DieSide = Annotated[float, Field(ge=1, le=1e4), Unit("1")]
Fraction = Annotated[float, Field(gt=0, le=1), AfterValidator(no_dust), Unit("1")]
Factor = Annotated[float, Field(ge=1, le=1e3), Unit("1")]
Watts = Annotated[float, Field(gt=0, le=1e9), AfterValidator(no_dust), Unit("W")]
Words = Annotated[tuple[Annotated[int, Field(ge=1, le=10**6)], ...], Field(min_length=1), Unit("wavelets")]


@saved
class Wafer(Displayed, ScalarCosts):
    """Constants of one wafer-scale engine; (0, 0) is the north-west core, arrays are (rows, cols)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    provenance: dict[str, Constant] = Field(repr=False)
    # Correlations of constants that were fitted together: "name name" -> -1 to 1.
    correlations: dict[str, Annotated[float, Field(ge=-1, le=1)]] = Field(default={}, repr=False)
    # Cores that are dead: (row, col) pairs, and whole rows; regions and programs avoid them.
    dead_cores: tuple[tuple[int, int], ...] = ()
    dead_rows: tuple[int, ...] = ()
    # avoid: regions leave them out; shift: spare columns replace them, row by row (assumed).
    defect_repair: Literal["avoid", "shift"] = "avoid"
    # redundant: otherwise unused links carry words over dead cores (assumed); around: words go around them.
    defect_links: Literal["redundant", "around"] = "redundant"

    # geometry
    rows: Count
    cols: Count
    program_rows: Count
    program_cols: Count
    rows_per_die: DieSide
    cols_per_die: DieSide
    # clocks
    clock_hz: Hertz
    program_clock_hz: Hertz
    power_limited_clock_hz: Hertz
    # memory of one core
    sram_bytes: Bytes
    sram_reserved_bytes: Bytes
    sram_banks: Count
    fp32_bank_period_words: Count
    csl_bank_period_words: Count
    sram_read_bytes_per_cycle: Annotated[float, Field(ge=1e-3, le=1e6), Unit("bytes/cycle")]
    sram_write_bytes_per_cycle: Annotated[float, Field(ge=1e-3, le=1e6), Unit("bytes/cycle")]
    # router and fabric
    link_bytes_per_cycle: Annotated[float, Field(ge=1e-3, le=1e6), Unit("bytes/cycle")]
    hop_cycles: Annotated[int, Field(ge=1, le=10**6), Unit("cycles")]
    launch_row_cycles: Annotated[int, Field(ge=0, le=10**6), Unit("cycles")]
    turn_cycles: Annotated[int, Field(ge=0, le=10**6), Unit("cycles")]
    ramp_cycles: Annotated[int, Field(ge=1, le=10**6), Unit("cycles")]
    forward_cycles: Annotated[int, Field(ge=1, le=10**6), Unit("cycles")]
    die_crossing_cycles: Annotated[int, Field(ge=0, le=10**3), Unit("cycles")]
    wavelet_cycles: Annotated[float, Field(ge=1, le=1e6), Unit("cycles")]
    colors: Annotated[int, Field(gt=0, le=24), Unit("1")]
    router_queue_wavelets: Annotated[int, Field(ge=2, le=10**6), Unit("wavelets")]
    input_queue_wavelets: Words
    output_queue_wavelets: Words
    arbitration: Annotated[str, Field(pattern="^(round_robin|fixed)$"), Unit("policy")]
    microthreads: Count
    stream_order: Annotated[Literal["by_side", "by_arrival"], Unit("policy")]
    # vector unit
    peak_fma_fp16_per_cycle: Rate
    fma_fp16_per_cycle: Rate
    fma_mixed_per_cycle: Rate
    fma_fp32_per_cycle: Rate
    add_fp16_per_cycle: Rate
    add_fp32_per_cycle: Rate
    add_fp32_memory_per_cycle: Rate
    csl_add_fp32_memory_per_cycle: Rate
    mul_fp32_per_cycle: Rate
    mov_fp16_per_cycle: Rate
    mov_fp32_per_cycle: Rate
    max_fp16_per_cycle: Rate
    max_fp32_per_cycle: Rate
    misaligned_fp16_per_cycle: Rate
    bank_conflict_factor: Factor
    plain_fma_fp32_per_cycle: Rate
    vector_start_cycles: Cycles
    vector_start_loaded_cycles: Cycles
    map_element_cycles: Cycles
    map_vector_cycles: Cycles
    loop_cycles: Cycles
    fma_turn_cycles: Cycles
    step_cycles: Cycles
    triggered_start_cycles: Cycles
    task_pick_cycles: Cycles
    task_start_cycles: Cycles
    data_task_cycles: Cycles
    exp_cycles: Cycles
    divide_cycles: Cycles
    sqrt_cycles: Cycles
    special_element_cycles: Cycles
    backward_special_fraction: Fraction
    # kernels: what no mechanism explains, and what published kernels state of themselves
    stencil_memory_stall_cycles: Cycles
    stencil_neighbour_wait_cycles: Cycles
    stencil_first_block_wait_cycles: Cycles
    tree_root_streams: Count
    tree_handovers: Count
    decode_layer_instructions: Count
    kernel_code_bytes: Bytes
    rows_without_rhythm: Count
    # system
    io_bytes_per_s: BytesPerSecond
    io_channels_per_edge: Count
    launch_floor_s: Seconds
    pipeline_efficiency: Fraction
    power_active_w: Watts
    power_idle_w: Watts

    @property
    def brief(self) -> str:
        """Its name, cores, SRAM per core and clock."""
        sram = f"{self.sram_bytes / 1024:.4g} KiB of SRAM per core"
        return f"{self.name}: {self.rows:,} x {self.cols:,} cores, {sram}, {self.clock_hz / 1e9:.4g} GHz"

    def __str__(self) -> str:
        return repr(self)

    @property
    def cores(self) -> int:
        """Routers of the fabric (rows x cols)."""
        return self.rows * self.cols

    @property
    def program_cores(self) -> int:
        """Cores of the largest program rectangle."""
        return self.program_rows * self.program_cols

    @property
    def handover_cycles(self) -> int:
        """Cycles from the moment a wavelet leaves a router for its core until the wavelet that the core makes of it is
        in the router.
        """
        return 2 * self.ramp_cycles + self.forward_cycles

    def die_edges(self, rows: float, first_row: int | None = None) -> tuple[int, ...]:
        """Return the rows of a rectangle of `rows` rows that lie first on their die; such a rectangle begins in
        `first_row`.

        The first die begins in the first row of the fabric, a program in that of the program rectangle.
        """
        start = (self.rows - self.program_rows) // 2 if first_row is None else first_row
        edges = (ceil(k * self.rows_per_die) - start for k in range(1, ceil(self.rows / self.rows_per_die)))
        return tuple(edge for edge in edges if 0 < edge < rows)

    def crossing_cycles(self, a: float, b: float, first_row: int | None = None) -> int:
        """Return the cycles that the die edges between rows `a` and `b` of a rectangle add to a wavelet's latency."""
        if not self.die_crossing_cycles:
            return 0
        low, high = min(a, b), max(a, b)
        return self.die_crossing_cycles * sum(low < edge for edge in self.die_edges(high + 1, first_row))

    def travel_cycles(self, route: Sequence[tuple[float, float]]) -> float:
        """Return the cycles of a wavelet along straight lines from corner to corner (row, col) of the fabric."""
        legs = [(a, b) for a, b in pairwise(route) if a != b]
        hops = sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in legs)
        turns = sum((a[0] != b[0]) != (c[0] != d[0]) for (a, b), (c, d) in pairwise(legs))
        crossings = sum(self.crossing_cycles(a[0], b[0], 0) for a, b in legs)
        return float(hops * self.hop_cycles + turns * self.turn_cycles + crossings)

    @property
    def sram_usable_bytes(self) -> int:
        """SRAM per core left to a program."""
        return self.sram_bytes - self.sram_reserved_bytes

    @property
    def peak_fp16_flops_per_s(self) -> float:
        """Dense fp16 peak of the whole fabric: 2 FLOP per multiply-accumulate."""
        return 2.0 * self.peak_fma_fp16_per_cycle * self.cores * self.clock_hz

    def under_power_limit(self) -> Wafer:
        """Return the wafer at the clock that it keeps where power is limited, with the source and the range of that
        clock.

        Raises
        ------
        ConfigError
            If no lower clock is stated.
        """
        if self.power_limited_clock_hz >= self.clock_hz:
            raise ConfigError(
                f"wafer {self.name} has no power-limited clock below its {self.clock_hz / 1e9:.4g} GHz; state a "
                "lower power_limited_clock_hz in its file"
            )
        limited = self.provenance["power_limited_clock_hz"].model_copy(update={"acts": "models"})
        return self.model_copy(
            update={
                "clock_hz": self.power_limited_clock_hz,
                "provenance": self.provenance | {"clock_hz": limited},
            }
        )

    def derive(self, **changes: object) -> Wafer:
        """Return a wafer with some constants changed (evidence becomes "assumed").

        Raises
        ------
        ConfigError
            If a name is no constant of a wafer or a value is impossible.
        """
        fields = WAFERS.changed(self, changes)
        kept = fields["provenance"]  # what did not change was checked when it was read
        fields["provenance"] = {name: stated for name, stated in kept.items() if name in changes}
        return _validated(fields, f"wafer {self.name}").model_copy(update={"provenance": kept})


MAX_CORES = 10**8
"""Cores of the largest fabric that can be described: a hundred times a present wafer."""

UNITS: dict[str, str] = units_of(Wafer)
"""Unit of every constant of a wafer, by name."""

WAFERS = ConstantSet(
    "wafer",
    "wafers",
    UNITS,
    "wse-sim show wafer wse2",
    limits_of(Wafer),
    ("correlations", "dead_cores", "dead_rows", "defect_repair", "defect_links"),
    {
        "transmission_core_fraction": "state 'pipeline_efficiency', which is 1 less that fraction (0.72 instead of 0.28)"
    },
)


def _validated(fields: dict[str, Any], where: object) -> Wafer:
    try:
        wafer = Wafer.model_validate(fields)
    except ValidationError as fault:
        raise ConfigError(one_sentence(where, fault)) from fault
    if wafer.cores > MAX_CORES:
        raise ConfigError(
            f"{where}: key 'rows'/'cols': {wafer.rows:,} x {wafer.cols:,} are {wafer.cores:,} cores, the limit is "
            f"{MAX_CORES:,}; describe a smaller fabric"
        )
    if wafer.program_rows > wafer.rows or wafer.program_cols > wafer.cols:
        raise ConfigError(
            f"{where}: key 'program_rows'/'program_cols': {wafer.program_rows} x {wafer.program_cols} exceeds "
            f"the fabric of {wafer.rows} x {wafer.cols}; make the program rectangle smaller"
        )
    if wafer.sram_reserved_bytes >= wafer.sram_bytes:
        raise ConfigError(
            f"{where}: key 'sram_reserved_bytes': {wafer.sram_reserved_bytes} leaves nothing of "
            f"{wafer.sram_bytes} bytes; reserve less"
        )
    outside = [rc for rc in wafer.dead_cores if not (0 <= rc[0] < wafer.rows and 0 <= rc[1] < wafer.cols)]
    outside_rows = [row for row in wafer.dead_rows if not 0 <= row < wafer.rows]
    if outside or outside_rows:
        first = outside[0] if outside else outside_rows[0]
        raise ConfigError(
            f"{where}: key 'dead_cores'/'dead_rows': {first} is outside the fabric of "
            f"{wafer.rows} x {wafer.cols}; name cores of the fabric"
        )
    return wafer


def wafer_names() -> list[str]:
    """Return the names of the wafers shipped with the package."""
    return WAFERS.names()


def load_wafer(name_or_path: str | Wafer = "wse2") -> Wafer:
    """Read a wafer by name or from a YAML file; a wafer that is already one is given back.

    Example
    -------
    >>> wafer = load_wafer("wse2")
    >>> wafer.cores, wafer.clock_hz
    (753972, 1100000000.0)
    >>> wafer.derive(clock_hz=1.0e9).clock_hz
    1000000000.0

    Raises
    ------
    ConfigError
        One sentence with file and key: unknown key, wrong unit, impossible value, unknown base.
    """
    return name_or_path if isinstance(name_or_path, Wafer) else read_wafer(str(name_or_path))


@read_once(WAFERS)
def read_wafer(name_or_path: str) -> Wafer:
    """:func:`load_wafer` of a path, read once per process unless a file changes."""
    path = WAFERS.path_of(name_or_path)
    return _validated(WAFERS.read(path, load_wafer), path)
