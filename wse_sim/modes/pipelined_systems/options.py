"""What a user may fix of a pipeline over several systems."""

from __future__ import annotations

from wse_sim.graph.results import EVERYTHING
from wse_sim.modes.pipelined.options import PipelinedOptions, PlacedOptions

NAME = "pipelined-systems"


class SystemsOptions(PlacedOptions):
    """What a user may fix of a pipeline over systems."""

    @property
    def of_one(self) -> PipelinedOptions:
        """The options of each wafer's part: without a search for short batches: its own fill says nothing of the chain's.

        What a part hands on is no result of the model.
        """
        own = {name: getattr(self, name) for name in type(self).model_fields} | {"send": EVERYTHING}
        return PipelinedOptions(**own, replicas=1, layouts=False)
