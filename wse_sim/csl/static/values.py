"""Abstract values of a core: a known integer, or the reason why it is unknown.

A register and a word of memory contain an int (raw bits, as in the machine) or an :class:`Unknown`. Results
computed from an unknown value are unknown for the same reason; elements of float vectors are not tracked.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Unknown:
    """Value that the analysis does not know; `cause` is its origin, as the end of a sentence.

    If ``is_data``, it may depend on data. Otherwise it is the same for all data, unless data affect it
    elsewhere.
    """

    cause: str
    is_data: bool = True


Value = int | Unknown

DATA = Unknown("data of the host")
WORD = Unknown("a word that arrived")
CLOCK = Unknown("the clock", is_data=False)
POSITION = Unknown("the position of the core", is_data=False)
RANDOM = Unknown("random numbers", is_data=False)
FLOAT = Unknown("floating-point arithmetic", is_data=False)
MACHINE = Unknown("the state of routers, queues and threads", is_data=False)


def first_unknown(*values: Value) -> Unknown | None:
    """Return the unknown value that makes a result unknown, data before others; None if all are known."""
    unknown = [value for value in values if isinstance(value, Unknown)]
    return next((value for value in unknown if value.is_data), unknown[0] if unknown else None)
