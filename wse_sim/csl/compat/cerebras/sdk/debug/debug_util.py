"""Import name of the reader of stopped runs; see wse_sim.csl.host.record."""

from wse_sim.csl.host.record import DebugUtil as debug_util  # noqa: N813

__all__ = ["debug_util"]
