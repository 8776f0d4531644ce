"""From the name of a model and the options of serving to a replica, a load and an answer: one way for command, study, predictor.

replica_for    the model's plan on the fewest wafers that hold it, as a table of turns with its rules
load_for       the requests that the options describe
answer_of      a run, or the search that the options ask for
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.frontend import Model
from wse_sim.graph import KernelGraph
from wse_sim.modes.generation import Generation
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.serving import run, special
from wse_sim.serving.base import TICK_S, Load, ServingError, ServingRules
from wse_sim.serving.bounds import bounds_of
from wse_sim.serving.curve import (
    CURVE_REQUESTS,
    FRACTIONS,
    USER_FACTORS,
    CurvePoint,
    curve_of,
)
from wse_sim.serving.latency import read_table
from wse_sim.serving.metrics import read_goals
from wse_sim.serving.options import DEFAULT_CONTEXT, DEFAULT_PROMPT, ServingOptions
from wse_sim.serving.run import Replica, Serving
from wse_sim.serving.traces import load_of
from wse_sim.serving.workload import arriving, drawn_load, shortened

NO_MODEL = "none"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployed:
    """A replica of a model, on how many wafers, and its plan (None for a table of turns)."""

    replica: Replica
    systems: int
    plan: GenerationPlan | None = None


@dataclass(frozen=True)
class ServiceAnswer:
    """A serving run, the deployment that it ran on, and the outcome of a search."""

    serving: Serving
    deployed: Deployed
    tried: tuple[str, ...] = ()
    rate: float | None = None  # the highest one that meets the goals, of a search for it

    @property
    def systems(self) -> int:
        """Wafers of a replica."""
        return self.deployed.systems


@dataclass(frozen=True)
class Unserved:
    """The reason why there is no answer: the binding resource, need and limit, and a message."""

    binding: str
    message: str
    need: float = 0.0
    limit: float = 0.0


def _silent(_: str) -> None:
    return None


def answer_of(
    model: Model, options: ServingOptions, say: Say = _silent, *, keeps: bool = False
) -> ServiceAnswer | Unserved:
    """Serve a load, or run the requested search; with `keeps`, an interrupted run returns what was answered
    so far.

    Raises
    ------
    WseError
        If a model, a load or an option is at fault.
    """
    goals = None if options.goodput is None else read_goals(options.goodput)
    if options.search != "none" and goals is None:
        raise ServingError(f'a search for {options.search} needs goals; give --goodput "ttft:MS tpot:MS"')
    if _is_none(model) != (options.turns is not None):
        raise ServingError("give a model, or none with --turns FILE, not both")
    load = load_for(options)
    model = _graph(model, longest_of(options, load))
    if options.search == "wafers" and goals is not None:
        return _fewest(model, options, load, goals, say)
    deployed = replica_for(model, options, load, options.systems, say)
    if isinstance(deployed, Unserved):
        return deployed
    say("serve")
    if options.search == "rate" and goals is not None:
        return _highest(options, load, deployed, goals)
    served = run.serve(
        load,
        deployed.replica,
        replicas=options.replicas,
        engine=options.engine,
        router=options.router,
        keeps=keeps,
    )
    return ServiceAnswer(served, deployed)


def load_for(options: ServingOptions, rate: float | None = None) -> Load:
    """The requests that the options describe, at another rate if one is given (of a file: times as fast)."""
    asked = rate if rate is not None else options.rate
    per_s = float("inf") if asked is None else asked
    if options.workload is None:
        load = drawn_load(
            options.requests,
            rate=per_s,
            arrivals=options.arrivals,
            inputs=options.input,
            outputs=options.output,
            seed=options.seed,
        )
    else:
        scale = options.scale_rate if rate is None else rate
        arrive = functools.partial(arriving, rate=per_s, arrivals=options.arrivals, seed=options.seed)
        load = load_of(options.workload, scale_rate=scale, limit=options.requests, arrive=arrive)
    return load if options.context is None else shortened(load, options.context)


def replica_for(
    model: Model,
    options: ServingOptions,
    load: Load | None = None,
    systems: int | None = None,
    say: Say = _silent,
) -> Deployed | Unserved:
    """The replica that the options ask for, for the lengths of a load; without one, for a context and a prompt of 512 tokens.

    Without `systems`, on the fewest wafers that hold it.
    """
    if options.turns is not None:
        table = read_table(options.turns)
        turn = options.max_num_batched_tokens or table.most_tokens
        replica = Replica(table, _rules(options, turn, options.kv_blocks or 10**6))
        return _special(
            Deployed(replica, 1),
            options,
            longest_of(options, load),
            _mean_prompt(load, table.most_context),
            say,
        )
    most = longest_of(options, load)
    plan = _plan(_graph(model, most), options, most, _mean_prompt(load, most), systems, say)
    if isinstance(plan, Unserved):
        return plan
    replica = run.replica_of(
        plan,
        most_context=most,
        turn_tokens=options.max_num_batched_tokens,
        blocks=options.kv_blocks,
        block_tokens=options.block_size,
        most_running=options.max_num_seqs,
        joined=options.joined,
        reserve=options.admission == "reserve",
        prefix_cache=options.prefix_caching,
    )
    return _special(Deployed(replica, plan.systems, plan), options, most, _mean_prompt(load, most), say)


def _special(
    made: Deployed, options: ServingOptions, longest: int, prompt: int, say: Say
) -> Deployed | Unserved:
    """The replica with drafts, prefill elsewhere, swaps and priorities, as requested; on the wafers of all that."""
    draft: GenerationPlan | None = None
    if options.speculate is not None and (model := special.read_drafting(options.speculate).model):
        found = _plan(_graph(model, longest), options, longest, prompt, None, say)
        if isinstance(found, Unserved):
            return found
        draft = found
    rules = special.with_special(
        made.replica.rules,
        made.plan,
        longest=longest,
        speculate=options.speculate,
        draft=draft,
        prefill=options.prefill,
        streams=options.handover == "stream",
        swap=options.preemption == "swap",
        by_priority=options.policy == "priority",
        seed=options.seed,
    )
    helpers = special.helper_wafers(made.plan.systems if made.plan else 1, rules, draft)
    replica = dataclasses.replace(made.replica, rules=rules, helper_wafers=helpers)
    return Deployed(replica, made.systems + replica.helpers, made.plan)


def longest_of(options: ServingOptions, load: Load | None) -> int:
    """Tokens of the longest context: of the options, or of the load."""
    if load is None:
        return options.context or DEFAULT_CONTEXT
    return max(options.context or 0, int((load.input_tokens + load.output_tokens).max()))


def _mean_prompt(load: Load | None, most: int) -> int:
    mean = DEFAULT_PROMPT if load is None else max(1, round(float(load.input_tokens.mean())))
    return min(mean, most)


def _rules(options: ServingOptions, turn: int, blocks: int) -> ServingRules:
    reserve = options.admission == "reserve"
    return ServingRules(
        blocks,
        options.block_size,
        options.max_num_seqs,
        turn,
        options.joined,
        reserve,
        options.prefix_caching,
    )


def _is_none(model: Model) -> bool:
    return isinstance(model, str) and model == NO_MODEL


def _graph(model: Model, longest: int) -> Model:
    """Read a model for contexts of up to `longest` tokens; :data:`NO_MODEL` is returned unchanged."""
    if isinstance(model, KernelGraph) or _is_none(model):
        return model
    return api.read(model, api.RunOptions(mode=Generation.name, phase="inference", batch=1, seq=longest))


def _plan(
    model: Model,
    options: ServingOptions,
    longest: int,
    prompt: int,
    systems: int | None,
    say: Say,
) -> GenerationPlan | Unserved:
    """The plan of generation for some lengths; without `systems`, on the fewest wafers that fit."""
    count = systems or 1
    while True:
        say(f"plan {count} wafer{'s' * (count > 1)}")
        chosen = api.RunOptions(
            mode=Generation.name, phase="inference", batch=1, seq=longest,
            wafer=options.wafer, cluster=options.cluster, clock=options.clock, systems=count,
            mode_options={"prompt": prompt, "grid": options.grid, "grid_cols": options.grid_cols,
                          "chunk": options.max_num_batched_tokens,
                          "weights_bits": options.weights_bits, "experts": options.experts,
                          "expert_layout": options.expert_layout},
        )  # fmt: skip
        plan = api.plan_of(api.read(model, chosen), chosen)
        if isinstance(plan, GenerationPlan):
            return plan
        assert isinstance(plan, Infeasible)
        if systems is not None or count >= options.max_wafers or plan.binding != "SRAM":
            return Unserved(plan.binding, plan.message, plan.need, plan.limit)
        count += 1


def _lone(options: ServingOptions, load: Load, replica: Replica) -> str:
    first = bounds_of(load, replica.rules, replica.table).first_token_s
    return f"the first token of a lone mean request takes {1e3 * first:,.4g} ms, and {100 * options.attain:.0f} % of all must meet them"


def _highest(
    options: ServingOptions, load: Load, deployed: Deployed, goals: Mapping[str, float]
) -> ServiceAnswer | Unserved:
    """Search for the highest rate that meets the goals."""
    rate, best = run.capacity(
        lambda rate: load_for(options, rate),
        deployed.replica,
        goals,
        replicas=options.replicas,
        attain=options.attain,
        router=options.router,
    )
    if best is None:
        return Unserved("goals", f"no rate meets {options.goodput}: {_lone(options, load, deployed.replica)}")
    tried = (f"{rate:,.4g} requests/s is the highest rate that meets {options.goodput}",)
    return ServiceAnswer(best, deployed, tried, rate)


def _fewest(
    model: Model, options: ServingOptions, load: Load, goals: Mapping[str, float], say: Say
) -> ServiceAnswer | Unserved:
    """The fewest wafers in all: replicas of every number of wafers that fits, up to the best that is known.

    An interrupt ends the search with the best that was found so far, if any.
    """
    first = deployed = replica_for(model, options, load, options.systems, say)
    if isinstance(first, Unserved):
        return first
    best: ServiceAnswer | None = None
    tried: list[str] = []
    try:
        while isinstance(deployed, Deployed):
            systems = deployed.systems
            limit = options.max_wafers if best is None else best.systems * best.serving.replicas - 1
            if systems > limit or systems > 2 * first.systems:
                break
            say(f"serve on replicas of {systems} wafer{'s' * (systems > 1)}")
            most = max(1, limit // systems)
            count, found = run.fewest_replicas(
                load, deployed.replica, goals, attain=options.attain, most=most, router=options.router
            )
            tried.append(_tried(systems, count, found, goals))
            if found is not None:
                best = ServiceAnswer(found, deployed)
            if options.systems is not None or options.turns is not None:
                break
            deployed = replica_for(model, options, load, systems + 1 - deployed.replica.helpers, say)
    except KeyboardInterrupt:
        if best is None:
            raise
        tried.append("interrupted: larger replicas were not tried")
    if best is None:
        return Unserved(
            "goals", f"no {options.max_wafers} wafers meet {options.goodput}: {_short(options, load, first)}"
        )
    return ServiceAnswer(best.serving, best.deployed, tuple(tried))


def _short(options: ServingOptions, load: Load, made: Deployed) -> str:
    """Explain why the allowed wafers are too few: the load exceeds their throughput, or a single request is
    too slow."""
    came, count = _rate_of(load), options.max_wafers // made.systems
    most = count * bounds_of(load, made.replica.rules, made.replica.table).requests_per_s
    if came is None or load.is_closed or came <= most:
        return _lone(options, load, made.replica)
    each = f"{made.systems} wafer{'s' * (made.systems != 1)}"
    return f"{came:,.4g} requests/s come, and {count} replicas of {each} answer {most:,.4g} at most"


def curve_for(options: ServingOptions, answer: ServiceAnswer) -> tuple[str, tuple[CurvePoint, ...]]:
    """Load curves around an answer, with the name of the varied quantity: the rate, or the number of users.

    Rates are fractions of the closed-form bound, users multiples of the requested number; a ramp has no
    curve.
    """
    serving = answer.serving
    goals = None if options.goodput is None else read_goals(options.goodput)
    few = options.replace(requests=min(options.requests, CURVE_REQUESTS), engine="fast")
    name, _, rest = options.arrivals.partition(":")
    if options.draws_arrivals and name == "ramp":
        return "", ()
    if options.draws_arrivals and name == "users":
        users, _, think = rest.partition(":")
        loads = list(dict.fromkeys(max(1, round(int(users) * factor)) for factor in USER_FACTORS))
        colon = f":{think}" if think else ""

        def with_users(count: float) -> Load:
            return load_for(few.replace(arrivals=f"users:{int(count)}{colon}"))

        points = curve_of(with_users, loads, answer.deployed.replica, replicas=serving.replicas, goals=goals)
        return "users", points
    bound, scale = serving.bounds.requests_per_s, 1.0
    if not options.draws_arrivals:
        own_rate = _rate_of(load_for(few.replace(scale_rate=1.0)))
        if own_rate is None:
            return "", ()
        scale = own_rate

    def at_rate(rate: float) -> Load:
        return load_for(few, rate / scale)

    rates = [bound * fraction for fraction in FRACTIONS]
    points = curve_of(
        at_rate, rates, answer.deployed.replica, replicas=serving.replicas, goals=goals, router=options.router
    )
    return "requests/s that come", points


def _rate_of(load: Load) -> float | None:
    """Requests per second of a load; None if all arrive at once."""
    span = int(load.arrival_ticks[-1] - load.arrival_ticks[0])
    return (len(load) - 1) / (span * TICK_S) if span else None


def _tried(systems: int, count: int, found: Serving | None, goals: Mapping[str, float]) -> str:
    if found is None:
        return f"{systems:>4} wafers a replica: {count * systems} wafers are too few"
    met = run.attained(found, goals)
    return f"{systems:>4} wafers a replica: {count} replicas, {count * systems} wafers, {100 * met:.2f} % meet the goals"
