"""Names of the interface's core: the model helper, annotations, the current device."""

from __future__ import annotations

from wse_sim.cstorch.core import annotation, cb_model, modes
from wse_sim.cstorch.summaries import name_scope

__all__ = ["annotation", "cb_model", "modes", "name_scope"]
