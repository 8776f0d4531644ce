"""Names of the cluster's client library that public scripts import; nothing is connected."""

from __future__ import annotations

from wse_sim.cstorch.appliance import cluster, environment, errors, log, run_utils, storage, utils
from wse_sim.cstorch.appliance.log import logger

DEFAULT_COMPILE_DIR = "/opt/cerebras/cached_compile"

__all__ = [
    "DEFAULT_COMPILE_DIR",
    "cluster",
    "environment",
    "errors",
    "log",
    "logger",
    "run_utils",
    "storage",
    "utils",
]
