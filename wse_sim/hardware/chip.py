"""Silicon cost of a wafer: area, power and yield from its constants.

Symbols: n routers of the fabric (rows x cols), s fraction of additional spare cores, M bytes of SRAM per
core, l area of a core without its SRAM, m area of a byte of SRAM with its part of the macro, A area of the
wafer, c fraction of it that cores can cover (the rest: scribe lines, pads, clocks, power)::

    core        a = l + M m                      area of one core
    cores       n (1 + s) a <= c A               else the wafer cannot be built
    power       P = P0 [o + (1 - o) (n / n0) ((1 - q) f / f0 + q M / M0)]
                relative to a wafer of P0 watts, n0 cores, M0 bytes, clock f0; o fraction that does not depend on the
                cores, q fraction of a core's power that its SRAM takes
    defects     a core is dead with p = 1 - exp(-D a); D defects per area
    yield       each column of cores within a die has k = s R / (1 + s) spares of its R (1 + s) cores::

                Y = P(Binomial(R (1 + s), p) <= k) ** columns  x  exp(-D u A)

u is the fraction of the area where a defect cannot be repaired. More SRAM per core means a larger core: fewer
cores on the same wafer (:func:`equal_area`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.hardware.constants import (
    Constant,
    ConstantSet,
    Count,
    Unit,
    limits_of,
    no_dust,
    one_sentence,
    units_of,
)
from wse_sim.hardware.constants_cache import read_once
from wse_sim.hardware.wafer import Wafer
from wse_sim.serialize import saved

Area = Annotated[float, Field(gt=0, le=1e9), AfterValidator(no_dust), Unit("mm2")]
Fraction = Annotated[float, Field(ge=0, lt=1), Unit("1")]


@saved
class Chip(BaseModel):
    """Constants of the silicon that a wafer is built in, and of the wafer that they were read from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    provenance: dict[str, Constant] = Field(repr=False)

    wafer_mm2: Area
    core_area_fraction: Annotated[float, Field(gt=0, le=1), AfterValidator(no_dust), Unit("1")]
    core_logic_mm2: Area
    sram_mm2_per_mib: Area
    spare_core_fraction: Annotated[float, Field(ge=0, le=10), Unit("1")]
    defects_per_cm2: Annotated[float, Field(ge=0, le=1e4), Unit("1/cm2")]
    unrepairable_fraction: Fraction
    reference_cores: Annotated[int, Field(gt=0, le=10**8), Unit("1")]
    reference_sram_bytes: Annotated[int, Field(gt=0, le=10**9), Unit("bytes")]
    reference_clock_hz: Annotated[float, Field(ge=1e-3, le=1e15), Unit("Hz")]
    reference_power_w: Annotated[float, Field(gt=0, le=1e9), AfterValidator(no_dust), Unit("W")]
    constant_power_fraction: Fraction
    sram_power_fraction: Fraction
    most_power_w: Annotated[float, Field(gt=0, le=1e9), AfterValidator(no_dust), Unit("W")]
    repair_rows: Count

    def derive(self, **changes: object) -> Chip:
        """Return a chip with some constants changed (evidence becomes "assumed").

        Raises
        ------
        ConfigError
            If a name is no constant of a chip or a value is impossible.
        """
        fields = CHIPS.changed(self, changes)
        kept = fields["provenance"]  # what did not change was checked when it was read
        fields["provenance"] = {name: stated for name, stated in kept.items() if name in changes}
        return _validated(fields, f"chip {self.name}").model_copy(update={"provenance": kept})

    def core_mm2(self, sram_bytes: float) -> float:
        """Area of one core with `sram_bytes` of SRAM."""
        return self.core_logic_mm2 + sram_bytes / 2**20 * self.sram_mm2_per_mib

    @property
    def cores_mm2(self) -> float:
        """Area that cores can cover."""
        return self.core_area_fraction * self.wafer_mm2


CHIPS = ConstantSet("chip", "chips", units_of(Chip), "wse-sim show chip", limits_of(Chip))
"""The form of chip files."""


def _validated(fields: dict[str, Any], where: object) -> Chip:
    try:
        return Chip.model_validate(fields)
    except ValidationError as fault:
        raise ConfigError(one_sentence(where, fault)) from fault


def chip_names() -> list[str]:
    """Return the names of the chips shipped with the package."""
    return CHIPS.names()


def load_chip(name_or_path: str = "wse2") -> Chip:
    """Read a chip by name or from a YAML file.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    return _read_chip(str(name_or_path))


@read_once(CHIPS)
def _read_chip(name_or_path: str) -> Chip:
    path = CHIPS.path_of(name_or_path)
    return _validated(CHIPS.read(path, load_chip), path)


def chip_of(wafer: Wafer) -> Chip:
    """Return the silicon of a wafer: that of its name if one is shipped, else of the WSE-2."""
    return load_chip(wafer.name if wafer.name in chip_names() else "wse2")


@dataclass(frozen=True)
class Silicon:
    """A wafer as silicon; `fault` is the reason why it cannot be built ("" if it can), `need` and `limit` the numbers."""

    core_mm2: float
    cores_mm2: float  # of all cores, spares included
    area_fraction: float  # of what cores can cover
    power_w: float
    dead_cores: float  # expected
    yield_fraction: float
    binding: str = ""
    need: float = 0.0
    limit: float = 0.0
    fault: str = ""

    @property
    def is_buildable(self) -> bool:
        """Whether area and power suffice."""
        return not self.fault


def silicon_of(wafer: Wafer, chip: Chip) -> Silicon:
    """Return area, power and yield of a wafer."""
    core = chip.core_mm2(wafer.sram_bytes)
    physical = wafer.cores * (1 + chip.spare_core_fraction)
    area, power = physical * core, power_of(wafer, chip)
    dead = -math.expm1(-chip.defects_per_cm2 / 100 * core)
    binding, need, limit, fault = "", 0.0, 0.0, ""
    if area > chip.cores_mm2 * (1 + 1e-9):
        binding, need, limit = "wafer area", area, chip.cores_mm2
        fault = (
            f"wafer {wafer.name} cannot be built: {physical:,.0f} cores (spares included) of {core:.4g} mm2 need "
            f"{area:,.0f} mm2, the wafer has {limit:,.0f} mm2 for cores; take fewer cores or less SRAM per core"
        )
    elif power > chip.most_power_w:
        binding, need, limit = "power", power, chip.most_power_w
        fault = (
            f"wafer {wafer.name} cannot be supplied: it takes {power:,.0f} W, the system gives {limit:,.0f} W; "
            "take fewer cores, less SRAM or a lower clock"
        )
    return Silicon(
        core_mm2=core,
        cores_mm2=area,
        area_fraction=area / chip.cores_mm2,
        power_w=power,
        dead_cores=physical * dead,
        yield_fraction=_yield(wafer, chip, dead),
        binding=binding,
        need=need,
        limit=limit,
        fault=fault,
    )


def power_of(wafer: Wafer, chip: Chip) -> float:
    """Return the watts of a system at work with this wafer, scaled from the reference."""
    return chip.reference_power_w * power_factor(wafer, chip)


def power_factor(wafer: Wafer, chip: Chip) -> float:
    """Power relative to the reference wafer."""
    cores = wafer.cores / chip.reference_cores
    clock = wafer.clock_hz / chip.reference_clock_hz
    sram = wafer.sram_bytes / chip.reference_sram_bytes
    core = (1 - chip.sram_power_fraction) * clock + chip.sram_power_fraction * sram
    return chip.constant_power_fraction + (1 - chip.constant_power_fraction) * cores * core


def _yield(wafer: Wafer, chip: Chip, dead: float) -> float:
    """Return the fraction of wafers with no group of cores beyond repair."""
    from scipy.stats import binom

    rows = min(chip.repair_rows, wafer.rows)
    physical = math.floor(rows * (1 + chip.spare_core_fraction) + 1e-9)
    groups = wafer.cores / rows
    good = float(binom.logcdf(physical - rows, physical, dead)) if dead > 0 else 0.0
    return math.exp(groups * good - chip.defects_per_cm2 / 100 * chip.unrepairable_fraction * chip.wafer_mm2)


def equal_area(wafer: Wafer, base: Wafer, chip: Chip) -> Wafer:
    """Return `wafer` with the number of rows and columns, in the proportions of `base`, that fits the area of the cores
    of `base`.

    What the program rectangle of `base` leaves free at the edges stays free; the power constants follow
    :func:`power_factor`.

    Raises
    ------
    ConfigError
        If not one core is left to a program, or dead cores are named by place.
    """
    area = base.cores * chip.core_mm2(base.sram_bytes)
    wanted = area / chip.core_mm2(wafer.sram_bytes)
    rows = max(1, math.floor(math.sqrt(wanted * base.rows / base.cols) + 1e-9))
    cols = max(1, math.floor(wanted / rows + 1e-9))
    edge_rows, edge_cols = base.rows - base.program_rows, base.cols - base.program_cols
    if rows <= edge_rows or cols <= edge_cols:
        raise ConfigError(
            f"wafer {wafer.name}: {wafer.sram_bytes:,} bytes of SRAM per core leave {rows} x {cols} cores on "
            f"{area:,.0f} mm2, too few for a program; take less SRAM per core"
        )
    if wafer.dead_cores or wafer.dead_rows:
        raise ConfigError(
            f"wafer {wafer.name} names dead cores by place, which a wafer of another size cannot keep; "
            "leave dead_cores and dead_rows out"
        )
    sized = {"rows": rows, "cols": cols, "program_rows": rows - edge_rows, "program_cols": cols - edge_cols}
    changes: dict[str, float] = {key: value for key, value in sized.items() if value != getattr(wafer, key)}
    found = wafer.model_copy(update=changes)
    factor = power_factor(found, chip) / power_factor(base, chip)
    if abs(factor - 1) > 1e-9:
        changes |= {key: getattr(wafer, key) * factor for key in ("power_active_w", "power_idle_w")}
    return wafer.derive(**changes) if changes else wafer
