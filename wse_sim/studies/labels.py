"""Names and values of parameters and outputs for display, with their units."""

from __future__ import annotations

import re

from wse_sim.report.text import amount
from wse_sim.studies.quantities import UNITS


def unit_of(name: str) -> str:
    """Return the unit of a parameter or an output; "" if it has none."""
    from wse_sim.studies.parameters import parameters

    unit = UNITS.get(name) or (parameters()[name].unit if name in parameters() else "")
    return "" if unit in (name, "1") else unit


def label(name: str) -> str:
    """Return a name with its unit: ``samples_per_s (samples/s)``."""
    unit = unit_of(name)
    return f"{name} ({unit})" if unit else name


def short(name: str) -> str:
    """Return a name for display: the unit of a rate, or the words of another name without unit.

    >>> short("samples_per_s"), short("compute_samples_per_s"), short("sample_joules"), short("wafer.sram_bytes")
    ('samples/s', 'compute samples/s', 'sample energy', 'wafer.sram_bytes')
    """
    unit = unit_of(name)
    if name not in UNITS:
        return name
    if "/" in unit and name.endswith(rate := unit.replace("/", "_per_")):
        return name.removesuffix(rate).replace("_", " ") + unit
    return re.sub("(?<!_per)_(s|w|mm2|bytes)$", "", name).replace("_joules", "_energy").replace("_", " ")


def setting(name: str, value: object) -> str:
    """Return a parameter with its value: ``wafer.sram_bytes 32,768 bytes``, ``batch 256 samples``."""
    return f"{name} {amount(value, unit_of(name) or '1')}"


def quantity(name: str, value: float) -> str:
    """Return an output with its value: ``26.07 samples/s``, ``sample energy 931 J``."""
    unit, words = unit_of(name), short(name)
    number = amount(value, unit or "1")
    return (
        f"{words.removesuffix(unit)}{number}" if "/" in unit and words.endswith(unit) else f"{words} {number}"
    )
