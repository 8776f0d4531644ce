"""Helpers around a step: data, tracking, summaries, structures."""

from wse_sim.cstorch.distributed import CSConfig
from wse_sim.cstorch.utils.call_once import call_once
from wse_sim.cstorch.utils.data.utils import infer_batch_size

__all__ = ["CSConfig", "call_once", "infer_batch_size"]
