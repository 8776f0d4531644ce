"""Requests encoded as differences from a base request, to reduce the data that is sent to workers.

A request contains a complete wafer, cluster and chip with the sources of all constants, about 40 kB. The settings of a study differ
in a few constants, so a task contains only these, and the base is sent once per graph and worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from wse_sim.hardware.constants import Constant
from wse_sim.studies.evaluate import StudyRow
from wse_sim.studies.settings import Request

Kind = TypeVar("Kind", bound=BaseModel)
Changes = dict[str, Any]
PROVENANCE = "provenance"
MACHINE = ("wafer", "cluster")


@dataclass(frozen=True)
class Packed:
    """A request as differences from a base: fields of the request, its options, wafer, cluster and chip."""

    request: Changes
    options: Changes
    parts: dict[str, Changes]


def pack(request: Request, base: Request) -> Packed:
    """Return the differences of `request` from `base`; :func:`unpack` with the same base restores an equal
    request."""
    own = {
        name: getattr(request, name)
        for name in ("key", "graph_key", "model", "must_fit", "draws", "serving")
        if getattr(request, name) != getattr(base, name)
    }
    given, stated = request.options, base.options
    options = {
        name: getattr(given, name)
        for name in type(given).model_fields
        if name not in MACHINE and getattr(given, name) != getattr(stated, name)
    }
    parts = {name: _changes(getattr(given, name), getattr(stated, name)) for name in MACHINE}
    parts["chip"] = _changes(request.chip, base.chip)
    return Packed(own, options, {name: changes for name, changes in parts.items() if changes})


def unpack(packed: Packed, base: Request) -> Request:
    """Return the request that was packed with this base."""
    parts = {name: _changed(getattr(base.options, name), packed.parts.get(name, {})) for name in MACHINE}
    options = base.options.model_copy(update={**packed.options, **parts})
    chip = _changed(base.chip, packed.parts.get("chip", {}))
    return dataclasses.replace(base, **packed.request, options=options, chip=chip)


def _changes(part: BaseModel, base: BaseModel) -> Changes:
    if part is base:
        return {}
    found = {
        name: value
        for name in type(part).model_fields
        if name != PROVENANCE and (value := getattr(part, name)) != getattr(base, name)
    }
    own, theirs = _stated(part), _stated(base)
    if own is not theirs:
        changed = {k: v for k, v in own.items() if theirs.get(k) is not v and theirs.get(k) != v}
        gone = [name for name in theirs if name not in own]
        if changed or gone:
            found[PROVENANCE] = (changed, gone)
    return found


def _changed(base: Kind, changes: Changes) -> Kind:
    if not changes:
        return base
    update = dict(changes)
    if PROVENANCE in update:
        changed, gone = update[PROVENANCE]
        update[PROVENANCE] = {k: v for k, v in {**_stated(base), **changed}.items() if k not in gone}
    return base.model_copy(update=update)


def _stated(part: BaseModel) -> dict[str, Constant]:
    found: dict[str, Constant] = getattr(part, PROVENANCE)
    return found


def evaluated(
    evaluate: Callable[[Any, Sequence[Request]], list[StudyRow]],
    graph: object,
    base: Request,
    packed: Sequence[Packed],
) -> list[StudyRow]:
    """Evaluate the requests of a task on a worker; one row per request."""
    return evaluate(graph, [unpack(one, base) for one in packed])
