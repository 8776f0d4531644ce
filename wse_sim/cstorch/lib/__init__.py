"""The interface's compiled part, for programs that import it."""

from __future__ import annotations

from wse_sim.cstorch.core import annotation as annotation
from wse_sim.cstorch.core import cb_model as cb_model
from wse_sim.cstorch.lib import cerebras_pytorch_lib

__all__ = ["cerebras_pytorch_lib"]
