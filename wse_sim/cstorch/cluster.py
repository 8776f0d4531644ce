"""``backend.cluster``: the cluster as its management sees it; nothing is connected."""

from __future__ import annotations

import itertools

from wse_sim.cstorch import runtime

_workflows = itertools.count(1)


class Client:
    """The management's client."""

    def list_workflow_jobs(self, *_: object, **__: object) -> list[object]:
        """Return the jobs of a workflow: none, since this process is all there is."""
        return []


class Cluster:
    """Settings of the cluster and the workflow of this process."""

    def __init__(self) -> None:
        self.config: object = None
        self.client = Client()
        self.workflow_id: str | None = None

    def start_workflow(self, lock_resources: bool = True) -> bool:
        """Name the runs that belong together; return whether there is a name now."""
        if self.workflow_id is None:
            self.workflow_id = f"wflow-{next(_workflows)}"
        return True

    def stop_workflow(self) -> None:
        """Forget the name."""
        self.workflow_id = None

    def check_storage_connectivity(self) -> None:
        """Do nothing: files of this machine need no connection."""

    def active_resources(self) -> int:
        """Return the systems of the cluster."""
        return runtime.options().systems or runtime.settings().num_csx
