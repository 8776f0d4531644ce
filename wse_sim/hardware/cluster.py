"""Clusters: what stands around the wafers (MemoryX, SwarmX, hosts), as frozen validated constants."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.errors import ConfigError
from wse_sim.hardware.constants import Constant, one_sentence, read_yaml
from wse_sim.hardware.wafer import Bytes, BytesPerSecond, Count, Seconds
from wse_sim.serialize import saved

SamplesPerSecond = Annotated[float, Field(gt=0)]


@saved
class Cluster(BaseModel):
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

    def derive(self, **changes: Any) -> Cluster:
        """A cluster with some constants changed (evidence becomes "assumed").

        Raises
        ------
        ConfigError
            If a name is no constant of a cluster or a value is impossible.
        """
        provenance = dict(self.provenance)
        for key, value in changes.items():
            if key in CLUSTER_UNITS:
                provenance[key] = Constant(
                    value=value, unit=CLUSTER_UNITS[key], source="changed by the user", evidence="assumed"
                )
        fields = {key: getattr(self, key) for key in type(self).model_fields} | changes
        try:
            return Cluster.model_validate({**fields, "provenance": provenance})
        except ValidationError as fault:
            raise ConfigError(one_sentence(f"cluster {self.name}", fault)) from fault


CLUSTER_UNITS: dict[str, str] = {
    "max_systems": "1",
    "memoryx_bytes": "bytes",
    "memoryx_bytes_per_s": "bytes/s",
    "memoryx_update_bytes_per_s": "bytes/s",
    "weight_prefetch_phases": "1",
    "swarmx_bytes_per_s": "bytes/s",
    "swarmx_hop_s": "s",
    "swarmx_fanout": "1",
    "activation_server_bytes_per_s": "bytes/s",
    "activation_server_bytes": "bytes",
    "input_workers_per_system": "1",
    "worker_samples_per_s": "samples/s",
    "worker_bytes_per_s": "bytes/s",
    "step_overhead_s": "s",
}
"""Unit of every constant of a cluster, by name."""


def cluster_names() -> list[str]:
    """Names of the clusters shipped with the package."""
    folder = resources.files("wse_sim.configs").joinpath("clusters")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


@lru_cache(maxsize=32)
def load_cluster(name_or_path: str = "default") -> Cluster:
    """Read a cluster by name or from a YAML file.

    Raises
    ------
    ConfigError
        One sentence with file and key.
    """
    if name_or_path in cluster_names():
        path = Path(str(resources.files("wse_sim.configs").joinpath("clusters", f"{name_or_path}.yaml")))
    elif Path(name_or_path).suffix in {".yaml", ".yml"}:
        path = Path(name_or_path)
    else:
        raise ConfigError(
            f"cluster '{name_or_path}' is unknown; use one of {', '.join(cluster_names())} or a path to a YAML file"
        )
    data = read_yaml(path)
    unknown = set(data) - {"name", "base", "constants"}
    if unknown:
        raise ConfigError(f"{path}: key '{sorted(unknown)[0]}' is unknown; use name, base, constants")
    fields: dict[str, Any] = {}
    provenance: dict[str, Constant] = {}
    if "base" in data:
        base = load_cluster(str(data["base"]))
        provenance |= base.provenance
        fields |= {key: getattr(base, key) for key in Cluster.model_fields if key != "provenance"}
    for key, entry in (data.get("constants") or {}).items():
        if key not in CLUSTER_UNITS:
            raise ConfigError(
                f"{path}: key '{key}' is no constant of a cluster; 'wse-sim show cluster' lists them"
            )
        try:
            stated = Constant.model_validate(entry)
        except ValidationError as fault:
            raise ConfigError(
                f"{one_sentence(path, fault)}; constant '{key}' needs value, unit, source, evidence"
            ) from fault
        if stated.unit != CLUSTER_UNITS[key]:
            raise ConfigError(
                f"{path}: key '{key}': unit '{stated.unit}' is wrong; state it in '{CLUSTER_UNITS[key]}'"
            )
        provenance[key] = stated
        fields[key] = stated.value
    fields["name"] = data.get("name", path.stem)
    try:
        return Cluster.model_validate({**fields, "provenance": provenance})
    except ValidationError as fault:
        raise ConfigError(one_sentence(path, fault)) from fault
