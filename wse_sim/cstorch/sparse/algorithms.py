"""Algorithms that make and change masks.

Symbols: n weights of a parameter, s the fraction of zeros, k = round((1 - s) n) ones, d the fraction of ones that a step of
SET or RigL drops and grows again.  A mask is made of ranks: ``rank(score) < k``; a traced k is possible so, no value is
read, and both the old mask and the new one are computed with the choice left to ``torch.where``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from wse_sim.cstorch import faults, runtime
from wse_sim.cstorch.hooks import Handle
from wse_sim.cstorch.kinds import T
from wse_sim.cstorch.optim.optimizer import Optimizer
from wse_sim.cstorch.sparse.schedules import Cosine, StepFraction, UpdateSchedule, form_of, update_of
from wse_sim.cstorch.utils.utils import FilterCallable, make_param_filter

SparsityHook = Callable[["SparsityAlgorithm", str, torch.Tensor], None]

INIT_METHODS = ("random", "topk", "balanced-topk", "from_zeros", "checkerboard")
UNSPARSE = ("embedding", "norm", "lm_head", "pe_helper", "position", "bias")


def default_sparse_param_filter(name: str, parameter: torch.Tensor) -> bool:
    """Select matrices, except embeddings, normalisations and output heads."""
    low = name.lower()
    return parameter.ndim > 1 and low.split(".")[-1] != "bias" and not any(word in low for word in UNSPARSE)


def rank(score: torch.Tensor) -> torch.Tensor:
    """Return the rank of each value in falling order (0 is the largest), in the shape of the score."""
    order = score.reshape(-1).argsort(descending=True, stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    return places.reshape(score.shape)


def first_mask(
    parameter: torch.Tensor, sparsity: float, method: str | Callable[..., torch.Tensor]
) -> torch.Tensor:
    """Return the mask at the start (float32 zeros and ones)."""
    weights = runtime.host_value(parameter).detach()
    if callable(method):
        return method(parameter, sparsity).to(torch.float32)
    if method in ("topk", "balanced-topk"):
        score = weights.abs()
    elif method == "from_zeros":
        return (weights != 0).to(torch.float32)
    elif method == "checkerboard":
        ones = torch.arange(weights.numel()).reshape(weights.shape)
        return ((ones + 1) * (1 - sparsity)).floor().sub((ones * (1 - sparsity)).floor()).to(torch.float32)
    else:
        score = torch.rand(weights.shape)
    return (rank(score) < round((1 - sparsity) * weights.numel())).to(torch.float32)


class Sparse:
    """A sparse parameter: where it is, and where its mask is."""

    def __init__(self, name: str, module: torch.nn.Module, attribute: str) -> None:
        self.name, self.module, self.attribute = name, module, attribute

    @property
    def parameter(self) -> torch.Tensor:
        return getattr(self.module, self.attribute)  # type: ignore[no-any-return]

    @property
    def mask(self) -> torch.Tensor:
        # Looked up again: compile may put another tensor into the module's place.
        return getattr(self.module, f"{self.attribute}_mask")  # type: ignore[no-any-return]


class SparsityAlgorithm:
    """Makes masks for the parameters of a model and applies them in an optimizer.

    ``algorithm.apply(model)`` then ``algorithm.apply(optimizer)`` (or ``model.apply(algorithm)``,
    ``optimizer.apply(algorithm)``).

    Args:
        sparsity: fraction of zeros.
        init_method: of the first mask: "random", "topk", "from_zeros", "checkerboard", or a function of parameter and
            sparsity.
        param_filter: patterns of names, or a function of name and parameter; default: matrices that are no embedding,
            normalisation or output head.
    """

    # Whether masks are saved with the model.
    persistent = True

    def __init__(
        self,
        sparsity: object = 0.0,
        init_method: str | Callable[..., torch.Tensor] = "random",
        param_filter: str | Sequence[str] | FilterCallable | None = None,
        update: object = None,
        **_: object,
    ) -> None:
        if not callable(init_method) and init_method not in INIT_METHODS:
            raise faults.program_error(
                f"init_method='{init_method}' is unknown; the methods are {', '.join(INIT_METHODS)}"
            )
        self.update: UpdateSchedule = update_of(update)
        self.sparsity: StepFraction = form_of(sparsity, self.update)
        self.init_method = init_method
        self.param_filter = (
            default_sparse_param_filter if param_filter is None else make_param_filter(param_filter)
        )
        self.parameters: list[Sparse] = []
        self.count: torch.Tensor | None = None
        self._models: list[torch.nn.Module] = []
        self._models_hooked: set[int] = set()
        self._wanted_told: dict[int, Callable[..., None]] = {}
        self._present_told: dict[int, Callable[..., None]] = {}

    # -- use -------------------------------------------------------------------------------------

    def apply(self, target: T) -> T:
        """Sparsify a model or an optimizer, and return it."""
        if isinstance(target, torch.nn.Module):
            self.sparsify_model(target)
        elif isinstance(target, torch.optim.Optimizer):
            self.sparsify_optimizer(target)
        else:
            raise faults.program_error(
                f"sparsity applies to a model or an optimizer, not to a {type(target).__name__}"
            )
        return target

    def __call__(self, target: object) -> object:
        # ``module.apply(f)`` calls f for every child first and the module last; only the whole model is taken.
        if isinstance(target, torch.nn.Module):
            taken = [m for m in self._models if any(m is child for child in target.modules())]
            for child in taken:
                self._models.remove(child)
            self._models.append(target)
            return None
        return self.apply(target)

    def _settle(self) -> None:
        """Make the masks of the models that ``model.apply`` passed."""
        while self._models:
            self.sparsify_model(self._models.pop())

    def sparsify_model(self, model: torch.nn.Module) -> None:
        """Make masks for the parameters that the filter takes.

        Raises:
            ProgramError: it takes none.
        """
        found = 0
        for prefix, module in model.named_modules():
            for attribute, p in list(module.named_parameters(recurse=False)):
                name = f"{prefix}.{attribute}" if prefix else attribute
                if self.param_filter(name, p) and not hasattr(module, f"{attribute}_mask"):
                    self._sparsify(Sparse(name, module, attribute))
                    found += 1
        if not found:
            raise faults.program_error(
                f"{type(self).__name__}: no parameter of {type(model).__name__} is accepted by the filter; give param_filter"
            )

    def _sparsify(self, sparse: Sparse) -> None:
        p = sparse.parameter
        mask = runtime.state_tensor(
            first_mask(p, self.sparsity.start(), self.init_method), f"{sparse.name}_mask"
        )
        sparse.module.register_buffer(f"{sparse.attribute}_mask", mask, persistent=self.persistent)
        self.parameters.append(sparse)
        with torch.no_grad():
            p.mul_(mask)
        runtime.set_density(1.0 - self.sparsity.start(), sparse.name)

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Mask gradients before each step of the optimizer, weights and moments after it."""
        self._settle()
        if self.count is None:
            self.count = runtime.state_tensor(torch.tensor(0), f"{type(self).__name__}.count")
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)
        held = getattr(optimizer, "extra_state_tensors", list)
        optimizer.extra_state_tensors = lambda: [*held(), *self.state_tensors()]  # type: ignore[attr-defined]

    def state_tensors(self) -> list[torch.Tensor]:
        """Every tensor that a step may change."""
        return [s.mask for s in self.parameters] + ([] if self.count is None else [self.count])

    # -- in the step -----------------------------------------------------------------------------

    def _before(self, optimizer: object, _args: object, _keywords: object) -> None:
        with torch.no_grad():
            self.change_masks(optimizer)
            for sparse in self.parameters:
                if sparse.parameter.grad is not None:
                    sparse.parameter.grad.mul_(sparse.mask)

    def _after(self, optimizer: torch.optim.Optimizer, _args: object, _keywords: object) -> None:
        names = optimizer.state_names_to_sparsify() if isinstance(optimizer, Optimizer) else ()
        with torch.no_grad():
            for sparse in self.parameters:
                p, mask = sparse.parameter, sparse.mask
                p.mul_(mask)
                for name in names or ():
                    moment = optimizer.state[p].get(name)
                    if isinstance(moment, torch.Tensor) and moment.shape == p.shape:
                        moment.mul_(mask)
            self._tell()
            if self.count is not None:
                self.count.add_(1)

    def register_target_sparsity_hook(self, hook: SparsityHook) -> Handle:
        """Call a function in every step with the algorithm, the name of each parameter and the fraction of zeros wanted."""
        return Handle(self._wanted_told, hook)

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> Handle:
        """Register a hook that receives the actual fraction of zeros of the mask."""
        return Handle(self._present_told, hook)

    def _tell(self) -> None:
        wanted = None
        for sparse in self.parameters:
            for told in self._wanted_told.values():
                wanted = self.sparsity(self.count) if wanted is None and self.count is not None else wanted
                told(self, sparse.name, wanted)
            for told in self._present_told.values():
                told(self, sparse.name, 1 - sparse.mask.mean())

    def change_masks(self, optimizer: object) -> None:
        """Update the masks before the step, with dense gradients; a static algorithm does nothing."""

    # -- torch's words ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        held: dict[str, Any] = {s.name: s.mask for s in self.parameters}
        return held if self.count is None else {**held, "count": self.count}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for sparse in self.parameters:
                if sparse.name in state_dict:
                    runtime.assign(sparse.mask, state_dict[sparse.name])
            if self.count is not None and "count" in state_dict:
                runtime.assign(self.count, torch.as_tensor(state_dict["count"]))

    # -- the interface of earlier releases -------------------------------------------------------

    def hook_module(self, model: torch.nn.Module) -> None:
        """Make the masks of a model (what earlier releases do before the optimizer is wrapped)."""
        if id(model) not in self._models_hooked:
            self._models_hooked.add(id(model))
            self.sparsify_model(model)

    def initialize_sparsity(self) -> None:
        """Apply the masks once."""
        with torch.no_grad():
            for sparse in self.parameters:
                sparse.parameter.mul_(sparse.mask)

    def zero_grad(self, *_: object, **__: object) -> None:
        """Do nothing: masks have no gradients."""

    def step(self, *_: object, **__: object) -> None:
        """Do nothing: masks change with the optimizer's step."""


class Static(SparsityAlgorithm):
    """Masks that never change."""


class DynamicSparsity(SparsityAlgorithm):
    """Masks that change at the steps of ``update``."""

    def change_masks(self, optimizer: object) -> None:
        if self.count is None:
            raise faults.program_error(
                f"{type(self).__name__}: the optimizer is unknown; apply the algorithm to it"
            )
        is_update = self.update.is_update_step(self.count)
        sparsity = self.sparsity(self.count)
        for sparse in self.parameters:
            new, kept = self.new_mask(sparse, sparsity)
            p, mask = sparse.parameter, sparse.mask
            # What is dropped and grown again starts at zero, as everything that is grown.
            p.copy_(torch.where(is_update, p * kept, p))
            mask.copy_(torch.where(is_update, new.to(mask.dtype), mask))

    def new_mask(self, sparse: Sparse, sparsity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (the new mask, the part of the old one that stays), as booleans."""
        raise RuntimeError(f"{type(self).__name__} defines no new mask")


class GMP(DynamicSparsity):
    """Gradual magnitude pruning: the largest weights stay, fewer as sparsity rises."""

    def __init__(
        self,
        schedule: object = None,
        sparsity: object = None,
        init_method: str | Callable[..., torch.Tensor] = "topk",
        update: object = None,
        **options: Any,
    ) -> None:
        if schedule is None and sparsity is None:
            raise faults.program_error("GMP: the schedule of sparsity is missing; give schedule")
        # In earlier releases "schedule" states when masks change, and "sparsity" how sparse they get.
        if sparsity is not None and schedule is not None and update is None:
            update, schedule = schedule, None
        super().__init__(schedule if sparsity is None else sparsity, init_method, update=update, **options)

    def new_mask(self, sparse: Sparse, sparsity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        score = sparse.parameter.abs() * sparse.mask
        stays = rank(score) < torch.round((1 - sparsity) * score.numel())
        return stays, stays


class _DropAndGrow(DynamicSparsity):
    """Base of SET and RigL: a fraction of the ones is dropped and grown elsewhere."""

    def __init__(
        self,
        sparsity: object = 0.0,
        drop_fraction: object = 0.3,
        init_method: str | Callable[..., torch.Tensor] = "random",
        update: object = None,
        **options: Any,
    ) -> None:
        update = options.pop("schedule", None) if update is None else update
        super().__init__(sparsity, init_method, update=update, **options)
        self.drop_fraction: StepFraction = (
            drop_fraction if isinstance(drop_fraction, StepFraction) else form_of(drop_fraction, self.update)
        )

    def growth(self, sparse: Sparse) -> torch.Tensor:
        """Return the score by which new ones are chosen."""
        raise RuntimeError(f"{type(self).__name__} defines no growth")

    def new_mask(self, sparse: Sparse, sparsity: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.count is None:
            raise faults.program_error(
                f"{type(self).__name__}: the optimizer is unknown; apply the algorithm to it"
            )
        p, mask = sparse.parameter, sparse.mask
        ones = torch.round((1 - sparsity) * p.numel())
        keep = torch.round(ones * (1 - self.drop_fraction(self.count)))
        # Outside of the mask the score is below every weight's.
        stays = rank(torch.where(mask > 0, p.abs(), -torch.ones_like(p))) < keep
        grows = rank(torch.where(stays, torch.full_like(p, -1.0), self.growth(sparse))) < ones - keep
        return stays | (grows & ~stays), stays


class SET(_DropAndGrow):
    """Sparse evolutionary training: grows at random."""

    def growth(self, sparse: Sparse) -> torch.Tensor:
        return torch.rand_like(sparse.parameter)


class RigL(_DropAndGrow):
    """Grows where the dense gradient is largest; the fraction that is dropped falls along a cosine by default."""

    def __init__(self, sparsity: object = 0.0, drop_fraction: object = None, **options: Any) -> None:
        super().__init__(sparsity, Cosine(0.3, 1e5) if drop_fraction is None else drop_fraction, **options)

    def growth(self, sparse: Sparse) -> torch.Tensor:
        p = sparse.parameter
        return torch.zeros_like(p) if p.grad is None else p.grad.abs()


class Group(SparsityAlgorithm):
    """Several algorithms, each for its own parameters: ``Group({"*.up.*": Static(0.5), ...})`` or ``add``."""

    def __init__(self, groups: Mapping[str | FilterCallable, SparsityAlgorithm] | None = None) -> None:
        super().__init__()
        self.algorithms: list[SparsityAlgorithm] = []
        for patterns, algorithm in (groups or {}).items():
            self.add(patterns, algorithm)

    def add(self, patterns: str | Iterable[str] | FilterCallable, algorithm: SparsityAlgorithm) -> None:
        """Add an algorithm for the parameters whose names match."""
        algorithm.param_filter = make_param_filter(patterns)
        self.algorithms.append(algorithm)

    def extend(self, other: Group) -> None:
        self.algorithms += other.algorithms

    def sparsify_model(self, model: torch.nn.Module) -> None:
        for algorithm in self.algorithms:
            algorithm.sparsify_model(model)
            self.parameters += algorithm.parameters

    def sparsify_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._settle()
        for algorithm in self.algorithms:
            algorithm.sparsify_optimizer(optimizer)

    def register_target_sparsity_hook(self, hook: SparsityHook) -> Handle:
        handle = super().register_target_sparsity_hook(hook)
        for algorithm in self.algorithms:
            algorithm._wanted_told = self._wanted_told
        return handle

    def register_computed_sparsity_hook(self, hook: SparsityHook) -> Handle:
        handle = super().register_computed_sparsity_hook(hook)
        for algorithm in self.algorithms:
            algorithm._present_told = self._present_told
        return handle

    def state_dict(self) -> dict[str, Any]:
        return {name: value for a in self.algorithms for name, value in a.state_dict().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for algorithm in self.algorithms:
            algorithm.load_state_dict(state_dict)
