"""The frontend: it lowers PyTorch models to kernel graphs. Importing it does not import torch."""

from wse_sim.frontend.api import (
    Model,
    diagnose,
    explain,
    load_model,
    load_module,
    lower,
    lower_exported,
    lower_fx,
    model_names,
    name_of,
    takes_sequence,
)
from wse_sim.frontend.draw import draw_graph
from wse_sim.frontend.factories import named_models
from wse_sim.frontend.hints import Pin, pin, pin_kernels, read_pins, shard
from wse_sim.frontend.table import ModelTable, table_of
from wse_sim.frontend.training import add_training

__all__ = [
    "Model",
    "ModelTable",
    "Pin",
    "add_training",
    "diagnose",
    "draw_graph",
    "explain",
    "load_model",
    "load_module",
    "lower",
    "lower_exported",
    "lower_fx",
    "model_names",
    "name_of",
    "named_models",
    "pin",
    "pin_kernels",
    "read_pins",
    "shard",
    "table_of",
    "takes_sequence",
]
