"""Names of the cluster's client library that public scripts import; nothing is connected."""

from __future__ import annotations

from wse_sim.cstorch.appliance import environment, errors, log, run_utils, utils
from wse_sim.cstorch.appliance.log import logger

DEFAULT_COMPILE_DIR = "/opt/cerebras/cached_compile"

__all__ = ["DEFAULT_COMPILE_DIR", "environment", "errors", "log", "logger", "run_utils", "utils"]
