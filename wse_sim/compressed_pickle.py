"""Large objects that travel by pickle: their state is compressed.

A result of a whole wafer holds two floats for every link and a slice for every kernel of every sample: 30 MB as they
are, and most of them repeat.
"""

from __future__ import annotations

import dataclasses
import pickle
import zlib

LEVEL = 1
"""Compression level of zlib; 9 takes seven times as long and saves a fifth."""


class Compressed:
    """A dataclass that derives from this pickles its fields compressed; copies take the same way.

    Example
    -------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Zeros(Compressed):
    ...     values: tuple[float, ...]
    >>> len(Zeros((0.0,) * 10_000).__getstate__()) < 2_000  # 90,000 bytes without
    True
    """

    def __getstate__(self) -> bytes:
        state = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}  # type: ignore[arg-type]  # of what derives from it
        return zlib.compress(pickle.dumps(state, protocol=5), LEVEL)

    def __setstate__(self, state: bytes) -> None:
        self.__dict__.update(pickle.loads(zlib.decompress(state)))
