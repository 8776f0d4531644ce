"""The interface of a placer: a name, a short description and one method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:  # for types only: the command line reads the list of placers at every start
    from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress
    from wse_sim.compiler.shelves import Box
    from wse_sim.compiler.sizing import Sizer


class Placer(ABC):
    """A placement algorithm; deterministic for an equal problem, seed and time limit.

    Example
    -------
    >>> from wse_sim.compiler.placers.registry import placer_named
    >>> placer = placer_named("snake")
    >>> isinstance(placer, Placer), placer.contest
    (True, True)
    """

    name: str
    about: str
    """Short description for lists."""
    limit_s: float | None = None
    """Time limit in seconds, for placers whose name includes an effort."""
    contest: ClassVar[bool] = False
    """Whether the placer takes rectangles that are not stages, as in contest instances."""


class Engine(Protocol):
    """The search of a placer of rectangles.

    Example
    -------
    >>> from wse_sim.compiler.placers.registry import placer_named
    >>> hasattr(placer_named("peel").engine(), "place")
    True
    """

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement: ...


class RectanglePlacer(Placer):
    """A placer of rectangles, which knows only the shapes of stages and not their costs.

    Example
    -------
    >>> class Nowhere(RectanglePlacer):
    ...     name, about = "nowhere", "places nothing"
    ...
    ...     def place(self, problem, *, seed=0, time_limit_s=60.0, progress=None):
    ...         raise NotImplementedError
    >>> Nowhere().contest
    True
    """

    contest: ClassVar[bool] = True

    @abstractmethod
    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """Return the best legal placement found.

        `time_limit_s` is in seconds. `progress` is called with the name of a phase and the cost of a better
        placement.

        Raises
        ------
        PlacementError
            If no placement was found.
        """


class Searching(RectanglePlacer):
    """A placer of rectangles whose search is imported only when it is used.

    The list of placers is read at every start of the command line, so it must load quickly.

    Example
    -------
    >>> from wse_sim.compiler.placers.registry import placers
    >>> [placer.name for placer in placers() if isinstance(placer, Searching)]
    ['best', 'exact', 'fast', 'normal', 'peel', 'portfolio', 'snake']
    """

    @abstractmethod
    def engine(self) -> Engine:
        """Import and return the search algorithm."""

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """Return the placement that the engine finds."""
        return self.engine().place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)


class StagePlacer(Placer):
    """A placer of a pipeline's stages, which knows their costs.

    Example
    -------
    >>> from wse_sim.compiler.placers.registry import placer_named
    >>> isinstance(placer_named("shelves"), StagePlacer)
    True
    """

    @abstractmethod
    def placements(self, sizer: Sizer, objective: str) -> Iterator[tuple[float, list[Box]]]:
        """Yield placements: the slowest time (cycles per sample) and the boxes of all stages of all replicas.

        The best comes first, then others whose streams are easier to route; there are none if the stages do
        not fit. `objective` is one of :data:`wse_sim.compiler.objectives.OBJECTIVES`.
        """
