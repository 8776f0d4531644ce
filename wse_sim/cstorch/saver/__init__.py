"""Checkpoint files, tensor by tensor."""

from wse_sim.cstorch.saver import storage
from wse_sim.cstorch.saver.pt_h5_saver import CerebrasStateDict, CheckpointReader, PyTorchH5Saver

__all__ = ["CerebrasStateDict", "CheckpointReader", "PyTorchH5Saver", "storage"]
