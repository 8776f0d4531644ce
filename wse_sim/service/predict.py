"""A predictor by the name of a model."""

from __future__ import annotations

from wse_sim.frontend import Model
from wse_sim.service.serving_run import Unserved, replica_for
from wse_sim.serving.base import ServingError
from wse_sim.serving.options import ServingOptions
from wse_sim.serving.predictor import Predictor


def predictor(model: Model, options: ServingOptions | None = None, **changes: object) -> Predictor:
    """A predictor of the latency of a model's turns, for use by an external scheduler.

    Parameters
    ----------
    model
        A decoder, as :func:`wse_sim.run` takes a model.
    options, changes
        Options of :class:`wse_sim.serving.options.ServingOptions`: `wafer`, `systems`, `context`, `max_num_batched_tokens`, ...

    Raises
    ------
    WseError
        If the model does not fit the wafers, or an option is at fault.

    Example
    -------
    >>> import wse_sim
    >>> predictor = wse_sim.predictor("llama3-8b", wafer="wse3", context=4096)  # doctest: +SKIP
    >>> predictor.turn_s(prefill=[(12, 512)], decode=[600])  # doctest: +SKIP
    """
    found = replica_for(
        model, (options or ServingOptions()).replace(**changes), systems=_systems(changes, options)
    )
    if isinstance(found, Unserved):
        raise ServingError(found.message)
    return Predictor(found.replica)


def _systems(changes: dict[str, object], options: ServingOptions | None) -> int | None:
    given = changes.get("systems", None if options is None else options.systems)
    return given if isinstance(given, int) else None
