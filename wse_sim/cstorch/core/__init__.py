"""Names of the interface's core: the model helper, annotations, the current device."""

from __future__ import annotations

from wse_sim.cstorch.core import annotation, cb_model, modes

__all__ = ["annotation", "cb_model", "modes"]
