"""The tree of input faults.

Every message is one sentence: the offending value, the limit, the remedy.  A model that does not
fit is not an error but a result (:class:`wse_sim.compiler.plan.Infeasible`).
"""

from __future__ import annotations


class WseError(Exception):
    """Base of every fault that the user's input can cause (exit status 2)."""

    keeps_lines = False
    """Whether the command line prints the lines of the message as lines: a sentence with what it rests on below."""


class ConfigError(WseError):
    """A configuration file has an unknown key, a wrong unit or an impossible value."""


class ModelError(WseError):
    """A model cannot be read or lowered."""


class UnsupportedOpError(ModelError):
    """An operator of the model has no kernel and no rule."""


class KernelError(WseError):
    """A kernel was asked for a shape, tiling or precision that it does not have."""


class ProgramError(WseError):
    """A fabric program is malformed or undefined on the hardware."""


class DeadlockError(ProgramError):
    """A fabric program stopped with cores that wait for each other."""


class PlacementError(WseError):
    """A placement is illegal: overlap, out of the fabric, over memory."""


class SerializationError(WseError):
    """A saved graph, plan or result cannot be read back."""
