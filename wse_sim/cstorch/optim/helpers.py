"""Makes optimizers and schedules by name, as in configurations."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.optim import adam, gradient, lr_scheduler, scaled, weight_decay_scheduler
from wse_sim.cstorch.optim import scheduler as forms
from wse_sim.cstorch.optim.optimizer import EXECUTION_ARGUMENTS, Optimizer
from wse_sim.cstorch.optim.scheduler import Scheduler

OPTIMIZERS: dict[str, type[Optimizer]] = {
    c.__name__: c
    for c in (
        gradient.SGD,
        adam.Adam,
        adam.AdamW,
        adam.Adamax,
        adam.NAdam,
        adam.RAdam,
        scaled.Adagrad,
        scaled.Adadelta,
        scaled.Adafactor,
        gradient.ASGD,
        scaled.RMSprop,
        gradient.Rprop,
        scaled.Lamb,
        gradient.Lion,
    )
}

# Words that older configurations use for arguments of schedules.
ELDER_WORDS = {
    "steps": "total_iters",
    "decay_steps": "total_iters",
    "boundaries": "milestones",
    "values": "learning_rates",
}
# Arguments of older schedules that have no meaning where the whole schedule is one form.
WITHOUT_EFFECT = frozenset({"disable_lr_steps_reset", "main_scheduler"})


def _nearest(kind: str, name: str, choices: Iterable[str]) -> str:
    choices = sorted(choices)
    near = difflib.get_close_matches(name.lower(), [c.lower() for c in choices], 1, 0.0)
    guess = next((c for c in choices if near and c.lower() == near[0]), choices[0])
    return f"unknown {kind} '{name}'; did you mean '{guess}'? The choices are {', '.join(choices)}"


def _accepted(cls: type) -> set[str] | None:
    """Return the names of the constructor's arguments, over all bases that it forwards to; None if it takes anything."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names
    return None


def _only_known(
    cls: type, keywords: Mapping[str, Any], extra: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the arguments that the class takes; the others are dropped with one warning."""
    accepted = _accepted(cls)
    if accepted is None:
        return dict(keywords)
    accepted |= extra
    dropped = sorted(k for k in keywords if k not in accepted)
    if dropped:
        faults.warn_once(
            ("dropped", cls.__name__, tuple(dropped)),
            f"{cls.__name__} does not take {', '.join(dropped)}: left out",
        )
    return {k: v for k, v in keywords.items() if k in accepted}


# -- optimizers ---------------------------------------------------------------------------------------


def configure_optimizer(
    optimizer_type: str, params: Iterable[torch.Tensor] | Iterable[dict[str, Any]], **keywords: Any
) -> Optimizer:
    """Return an optimizer by its name (in any case); a number as ``learning_rate`` is its ``lr``.

    Arguments that the optimizer does not take are left out, with one warning that lists them.

    Raises:
        ProgramError: no optimizer has the name.
    """
    cls, known = configure_optimizer_params(optimizer_type, keywords)
    return cls(params, **known)


def configure_optimizer_params(
    optimizer_type: str, kwargs: Mapping[str, object]
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class of an optimizer by its name, and those of the arguments that it takes; see
    :func:`configure_optimizer`.
    """
    by_name = {name.lower(): c for name, c in OPTIMIZERS.items()}
    cls = by_name.get(str(optimizer_type).lower())
    if cls is None:
        raise faults.program_error(_nearest("optimizer", str(optimizer_type), OPTIMIZERS))
    keywords = dict(kwargs)
    rate = keywords.pop("learning_rate", None)
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        keywords.setdefault("lr", float(rate))
    keywords = {
        k: float(v) if k in {"lr", "eps", "weight_decay"} and isinstance(v, str) else v
        for k, v in keywords.items()
    }
    known = _only_known(cls, keywords, EXECUTION_ARGUMENTS)
    if cls is scaled.Adafactor and known.get("lr") is not None and "relative_step" not in known:
        known["relative_step"] = False
    if cls is scaled.Adafactor and known.get("lr") is None and known.get("relative_step") is False:
        # The schedule that follows gives the rate.
        known["lr"] = 0.0
    return cls, known


def configure_param_groups(
    model: torch.nn.Module, optimizer_params: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the groups of a model's parameters: without decay for biases and normalisations, and one per rate
    adjustment.

    ``optimizer_params`` may hold ``weight_decay`` (or older ``weight_decay_rate``), ``exclude_from_weight_decay`` (name
    patterns; default: biases and parameters of fewer than two dimensions of normalisation layers), and
    ``adjust_learning_rate`` (name patterns -> factor).
    """
    decay = float(optimizer_params.get("weight_decay", optimizer_params.get("weight_decay_rate", 0.0)) or 0.0)
    excluded = optimizer_params.get("exclude_from_weight_decay")
    factors = dict(optimizer_params.get("adjust_learning_rate") or {})
    undecayed = _undecayed(model) if excluded is None else None
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        plain = name in undecayed if undecayed is not None else any(_matches(name, e) for e in excluded or ())
        factor = next((float(f) for pattern, f in factors.items() if _matches(name, pattern)), 1.0)
        group = groups.setdefault((plain, factor), {"params": [], "weight_decay": 0.0 if plain else decay})
        group["params"].append(p)
        if factors:
            group["adjust_learning_rate"] = factor
    return list(groups.values())


def _undecayed(model: torch.nn.Module) -> set[str]:
    found = set()
    for prefix, module in model.named_modules():
        normalises = "norm" in type(module).__name__.lower()
        for name, _p in module.named_parameters(recurse=False):
            if name == "bias" or name.endswith("_bias") or normalises:
                found.add(f"{prefix}.{name}" if prefix else name)
    return found


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or re.search(pattern, name) is not None


# -- schedules ----------------------------------------------------------------------------------------


def _by_name(module: object, suffixes: Sequence[str]) -> dict[str, type[Scheduler]]:
    found: dict[str, type[Scheduler]] = {}
    for name, value in vars(module).items():
        if isinstance(value, type) and issubclass(value, Scheduler) and not inspect.isabstract(value):
            found[name.lower()] = value
            for suffix in suffixes:
                if name.lower().endswith(suffix):
                    found.setdefault(name.lower()[: -len(suffix)], value)
    return found


def _one(
    module: object, suffixes: Sequence[str], optimizer: torch.optim.Optimizer, given: Mapping[str, Any]
) -> Scheduler:
    given = _named(given)
    spec = {ELDER_WORDS.get(k, k): v for k, v in given.items() if k not in WITHOUT_EFFECT}
    if "scheduler" not in spec and "name" not in spec:
        raise faults.program_error(
            f"the schedule {dict(given)} does not name its form; add the key 'scheduler'"
        )
    name = str(spec.pop("scheduler" if isinstance(spec.get("scheduler"), str) else "name"))
    table = _by_name(module, suffixes)
    cls = table.get(name.lower().replace("_", ""))
    if cls is None:
        choices = [
            k for k, c in table.items() if c.__name__.lower() == k and k not in ("scheduler", "lrscheduler")
        ]
        raise faults.program_error(_nearest("scheduler", name, choices))
    if cls.__name__.lower().startswith("scaleperparam") and isinstance(spec.get("scheduler"), Mapping):
        spec["scheduler"] = _one(module, suffixes, optimizer, spec["scheduler"])
    if "schedulers" in spec:
        members = spec["schedulers"]
        spec["schedulers"] = [_one(module, suffixes, optimizer, entry) for entry in members]
        if "milestones" in (_accepted(cls) or ()):
            spec.setdefault("milestones", _milestones([_named(e) for e in members], spec["schedulers"]))
    spec = {k: _number(v) for k, v in spec.items()}
    if (
        "PiecewiseConstant" in cls.__name__
        and "learning_rates" in spec
        and "learning_rates" not in (_accepted(cls) or ())
    ):
        spec["vals"] = spec.pop("learning_rates")
    needs_total = inspect.signature(cls).parameters.get("total_iters")
    known = _only_known(cls, spec)
    if needs_total is not None and needs_total.default is needs_total.empty and "total_iters" not in known:
        raise faults.program_error(
            f"the schedule {cls.__name__} needs total_iters, the number of its steps; add it to {dict(given)}"
        )
    try:
        return cls(optimizer, **known)
    except TypeError as fault:
        raise faults.program_error(
            f"the schedule {dict(given)} does not fit {cls.__name__}: {fault}"
        ) from fault


def _named(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """``{"LinearLR": {...}}``, as configurations of the Trainer name a form, with the key ``name``."""
    if (
        len(entry) == 1
        and isinstance(inner := next(iter(entry.values())), Mapping)
        and "scheduler" not in entry
    ):
        return {"name": next(iter(entry)), **inner}
    return entry


def _milestones(entries: Sequence[Mapping[str, Any]], schedules: Sequence[Scheduler]) -> list[int]:
    """Return after how many steps the second, the third ... schedule begins."""
    milestones, reached = [], 0
    for entry, made in zip(entries[:-1], schedules, strict=False):
        length = next(
            (entry[k] for k in ("total_iters", "steps", "decay_steps") if k in entry), made.total_iters
        )
        if length is None:
            raise faults.program_error(
                f"the schedule {dict(entry)} is followed by another one; state after how many steps (total_iters)"
            )
        reached += int(length)
        milestones.append(reached)
    return milestones


def _number(value: object) -> object:
    """Return the numbers that YAML reads as text ("1e-4")."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _configure(
    module: object,
    suffixes: Sequence[str],
    optimizer: torch.optim.Optimizer,
    value: object,
    constant: Callable[[float], Scheduler],
    sequential: Callable[..., Scheduler],
    chained: Callable[..., Scheduler],
) -> Scheduler | None:
    value = _number(value)
    if value is None:
        return None
    if isinstance(value, Scheduler):
        return value
    if isinstance(value, int | float):
        return constant(float(value))
    if isinstance(value, Mapping):
        return _one(module, suffixes, optimizer, value)
    if not isinstance(value, Sequence) or not value:
        raise faults.program_error(f"a schedule is a number, a dict or a list of dicts; got {value!r}")
    if len(value) == 1:
        return _configure(module, suffixes, optimizer, value[0], constant, sequential, chained)
    entries = [_one(module, suffixes, optimizer, entry) for entry in value]
    main = next((str(e["main_scheduler"]).lower() for e in value if "main_scheduler" in e), "sequential")
    if main.startswith("chained"):
        return chained(schedulers=entries, optimizer=optimizer)
    return sequential(optimizer, entries, _milestones([_named(e) for e in value], entries))


def configure_lr_scheduler(
    optimizer: torch.optim.Optimizer,
    learning_rate: object,
    adjust_learning_rate: Mapping[str, float] | None = None,
) -> Scheduler | None:
    """Return a schedule of the learning rate from a number (constant), a dict (one form, by ``scheduler``) or a list of
    dicts.

    A list is a sequence whose milestones follow from each entry's ``total_iters``, or a chain if an entry says
    ``main_scheduler: ChainedLR``.  With ``adjust_learning_rate`` each group's own factor multiplies the rate.  None gives None.
    """
    made = _configure(
        lr_scheduler,
        ("lr", "scheduler"),
        optimizer,
        learning_rate,
        lambda v: lr_scheduler.ConstantLR(optimizer, v),
        lr_scheduler.SequentialLR,
        lr_scheduler.ChainedScheduler,
    )
    return (
        lr_scheduler.ScalePerParamLR(optimizer, made) if made is not None and adjust_learning_rate else made
    )


def configure_weight_decay_scheduler(
    optimizer: torch.optim.Optimizer, weight_decay: object
) -> Scheduler | None:
    """Configure a schedule of the weight decay."""
    return _configure(
        weight_decay_scheduler,
        ("wd", "scheduler"),
        optimizer,
        weight_decay,
        lambda v: weight_decay_scheduler.ConstantWD(optimizer, v),
        weight_decay_scheduler.SequentialWD,
        weight_decay_scheduler.ChainedWD,
    )


def configure_scheduler_params(
    learning_rate: float | Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the list of dicts that a learning rate describes."""
    if isinstance(learning_rate, int | float):
        return [{"scheduler": "Constant", "learning_rate": learning_rate}]
    if isinstance(learning_rate, Mapping):
        return [dict(learning_rate)]
    return [dict(entry) for entry in learning_rate]


def configure_scheduler(
    optimizer: torch.optim.Optimizer, schedulers_params: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> Scheduler | list[Scheduler | None]:
    """Return the schedules of several options: a list of ``{option: schedule}``, or of ``{option: schedule}`` in one
    dict.

    ``{form: its arguments}``, as ``{"CosineDecayLR": {...}}``, is one schedule of the rate or of the weight decay.
    """
    if (
        isinstance(schedulers_params, Mapping)
        and (named := _named(schedulers_params)) is not schedulers_params
    ):
        form = str(named["name"]).lower()
        for module, suffix in ((lr_scheduler, "lr"), (weight_decay_scheduler, "wd")):
            if form in _by_name(module, (suffix, "scheduler")):
                return _one(module, (suffix, "scheduler"), optimizer, named)
    entries = schedulers_params if isinstance(schedulers_params, Sequence) else [schedulers_params]
    made: list[Scheduler | None] = []
    for entry in entries:
        for option, value in entry.items():
            if option in ("lr", "learning_rate"):
                made.append(configure_lr_scheduler(optimizer, value))
            elif option in ("weight_decay", "wd"):
                made.append(configure_weight_decay_scheduler(optimizer, value))
            else:
                made.append(_one_general(optimizer, option, value))
    return made


def _one_general(
    optimizer: torch.optim.Optimizer, option: str, value: float | Mapping[str, Any]
) -> Scheduler:
    """Make a schedule of any other option of a group, with the option as its key."""
    if not any(option in g for g in optimizer.param_groups):
        known = sorted({k for g in optimizer.param_groups for k in g} - {"params", "tags"})
        raise faults.program_error(
            f"the optimizer's groups have no option '{option}' to schedule; they have {', '.join(known)}"
        )
    spec = {"scheduler": "Constant", "val": float(value)} if isinstance(value, int | float) else dict(value)
    name = str(spec.pop("scheduler"))
    table = _by_name(forms, ("scheduler",))
    cls = table.get(name.lower())
    if cls is None:
        raise faults.program_error(
            _nearest("scheduler", name, [k for k in table if not k.endswith("scheduler")])
        )
    keyed = type(f"{cls.__name__}Of{option.title()}", (cls,), {"param_group_key": option})
    return keyed(optimizer, **_only_known(cls, spec))  # type: ignore[no-any-return]
