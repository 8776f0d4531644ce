"""Settings of the compiler under the name of later releases."""

from __future__ import annotations

from wse_sim.cstorch.appliance.run_utils import set_default_ini, set_ini

__all__ = ["set_default_ini", "set_ini"]
