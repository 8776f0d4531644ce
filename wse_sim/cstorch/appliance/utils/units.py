"""Units of bytes and time."""

from __future__ import annotations

__all__ = ["bytes_to_human", "convert_byte_unit", "convert_time_unit"]

_BYTES = {
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("KMGTP", 1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGTP", 1)},
}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def convert_byte_unit(
    value: float, dst_unit: str, src_unit: str = "B", precision: int | None = None
) -> float:
    """Convert bytes to another unit."""
    out = value * _BYTES[src_unit] / _BYTES[dst_unit]
    return out if precision is None else round(out, precision)


def convert_time_unit(
    value: float, dst_unit: str, src_unit: str = "s", precision: int | None = None
) -> float:
    """Convert a time to another unit."""
    out = value * _SECONDS[src_unit] / _SECONDS[dst_unit]
    return out if precision is None else round(out, precision)


def bytes_to_human(value: float, fmt: str = ".2f") -> str:
    """Return the bytes in the largest unit that fits."""
    for unit in ("PiB", "TiB", "GiB", "MiB", "KiB"):
        if value >= _BYTES[unit]:
            return f"{value / _BYTES[unit]:{fmt}}{unit}"
    return f"{value:{fmt}}B"
