"""Appliance interface under the vendor's name; see wse_sim.csl.host.appliance."""

from wse_sim.csl.host.appliance import ApplianceRuntime as SdkRuntime
from wse_sim.csl.host.appliance import SdkCompiler, SdkLauncher

__all__ = ["SdkCompiler", "SdkLauncher", "SdkRuntime"]
