"""Options of a pipeline over several systems."""

from __future__ import annotations

from wse_sim.graph.results import EVERYTHING
from wse_sim.modes.pipelined.options import PipelinedOptions, PlacedOptions

NAME = "pipelined-systems"


class SystemsOptions(PlacedOptions):
    """Options of a pipeline over several systems."""

    @property
    def of_one(self) -> PipelinedOptions:
        """Options of each wafer's part, without a search for short batches, because its fill differs from
        that of the chain.

        The outputs of a part are not results of the model.
        """
        own = {name: getattr(self, name) for name in type(self).model_fields} | {"send": EVERYTHING}
        return PipelinedOptions(**own, replicas=1, layouts=False)
