"""The frontend: PyTorch models become kernel graphs.  Importing it does not import torch."""

from wse_sim.frontend.api import explain, load_model, lower, lower_exported, lower_fx, model_names
from wse_sim.frontend.training import add_training

__all__ = ["add_training", "explain", "load_model", "lower", "lower_exported", "lower_fx", "model_names"]
