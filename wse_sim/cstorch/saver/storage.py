"""Storage of tensors in checkpoint files, under the name of release 2.5."""

from __future__ import annotations

from wse_sim.cstorch.storage.serializers import cache_deferred_tensors, use_external_link

__all__ = ["cache_deferred_tensors", "use_external_link"]
