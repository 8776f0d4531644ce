"""Reader of stopped runs under the vendor's name; see wse_sim.csl.host.record."""

from wse_sim.csl.host.record import DebugUtil as debug_util  # noqa: N813

__all__ = ["debug_util"]
