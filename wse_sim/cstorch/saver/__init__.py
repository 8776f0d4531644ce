"""Checkpoint files, tensor by tensor."""

from wse_sim.cstorch.saver.pt_h5_saver import PyTorchH5Saver

__all__ = ["PyTorchH5Saver"]
