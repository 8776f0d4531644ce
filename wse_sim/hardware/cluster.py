"""Clusters: the machines around the wafers (MemoryX, SwarmX, hosts), as frozen validated constants."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.hardware.constants import (
    Bytes,
    BytesPerSecond,
    Constant,
    ConstantSet,
    Count,
    Seconds,
    Unit,
    limits_of,
    one_sentence,
    units_of,
)
from wse_sim.hardware.constants_cache import read_once
from wse_sim.serialize import saved
from wse_sim.view_registry import Displayed

SamplesPerSecond = Annotated[float, Field(ge=1e-6, le=1e15), Unit("samples/s")]


@saved
class Cluster(Displayed, BaseModel):
    """Constants of the machines around one or more wafers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    provenance: dict[str, Constant] = Field(repr=False)

    max_systems: Count
    memoryx_bytes: Bytes
    memoryx_bytes_per_s: BytesPerSecond
    memoryx_update_bytes_per_s: BytesPerSecond
    weight_prefetch_phases: Count
    swarmx_bytes_per_s: BytesPerSecond
    swarmx_hop_s: Seconds
    swarmx_fanout: Count
    activation_server_bytes_per_s: BytesPerSecond
    activation_server_bytes: Bytes
    input_workers_per_system: Count
    worker_samples_per_s: SamplesPerSecond
    worker_bytes_per_s: BytesPerSecond
    step_overhead_s: Seconds

    @property
    def brief(self) -> str:
        """Its name, and the number of systems that it may have."""
        return f"{self.name}: up to {self.max_systems:,} systems"

    def __str__(self) -> str:
        return repr(self)

    def derive(self, **changes: object) -> Cluster:
        """Return a cluster with some constants changed (evidence becomes "assumed").

        Raises
        ------
        ConfigError
            If a name is no constant of a cluster or a value is impossible.
        """
        fields = CLUSTERS.changed(self, changes)
        kept = fields["provenance"]  # what did not change was checked when it was read
        fields["provenance"] = {name: stated for name, stated in kept.items() if name in changes}
        return _validated(fields, f"cluster {self.name}").model_copy(update={"provenance": kept})


CLUSTER_UNITS: dict[str, str] = units_of(Cluster)
"""Unit of every constant of a cluster, by name."""

CLUSTERS = ConstantSet("cluster", "clusters", CLUSTER_UNITS, "wse-sim show cluster", limits_of(Cluster))


def _validated(fields: dict[str, Any], where: object) -> Cluster:
    try:
        return Cluster.model_validate(fields)
    except ValidationError as fault:
        raise ConfigError(one_sentence(where, fault)) from fault


def cluster_names() -> list[str]:
    """Return the names of the clusters shipped with the package."""
    return CLUSTERS.names()


def load_cluster(name_or_path: str | Cluster = "default") -> Cluster:
    """Read a cluster by name or from a YAML file; a cluster that is already one is given back.

    Example
    -------
    >>> load_cluster().max_systems
    192

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    return name_or_path if isinstance(name_or_path, Cluster) else read_cluster(str(name_or_path))


@read_once(CLUSTERS)
def read_cluster(name_or_path: str) -> Cluster:
    """:func:`load_cluster` of a path, read once per process unless a file changes."""
    path = CLUSTERS.path_of(name_or_path)
    return _validated(CLUSTERS.read(path, load_cluster), path)
