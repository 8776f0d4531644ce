"""Records of tensor transfer that older scripts import; nothing is transferred."""

from __future__ import annotations

from wse_sim.cstorch.appliance.run_utils import DebugArgs

__all__ = ["ApplianceManager", "TensorGroup", "TensorGrouper", "TensorSendPayload"]


class TensorGroup(DebugArgs):
    """A record for a group of tensors, which accepts any attribute without effect."""


class TensorGrouper(DebugArgs):
    """A record for a grouper of tensors, which accepts any attribute without effect."""


class TensorSendPayload(DebugArgs):
    """A tensor with its name."""


class ApplianceManager:
    """A connection to a cluster, which does not exist here."""

    def __init__(self, *_: object, **__: object) -> None:
        from wse_sim.cstorch import faults

        raise faults.program_error(
            "a connection to a cluster is requested, but the simulator has none; use cstorch.backend"
        )
