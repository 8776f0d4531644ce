"""``wse-sim serve``: requests over time on a decoder at rest; latencies, goodput, the rate or the wafers that goals need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wse_sim.cli.common import Screen, print_json, progress, say_without_effect, unused
from wse_sim.cli.serve_output import Answer, as_data, as_text, heading, write_files
from wse_sim.declared import command
from wse_sim.options import option
from wse_sim.serving.options import ServingOptions

if TYPE_CHECKING:
    from wse_sim.compiler.plan import Infeasible, Plan
    from wse_sim.modes.generation.plan import GenerationPlan
    from wse_sim.serving.base import Load, ServingRules
    from wse_sim.serving.run import Replica

NO_MODEL = "none"
Say = Callable[[str], None]
DRAWN = ("rate", "arrivals", "input", "output", "seed")


class ServeCommand(ServingOptions):
    """The options of serving, and what only its command has."""

    emit_turns: Path | None = option(None, "Write the table of turns, for --turns.", writes="file")
    out: Path | None = option(None, "Folder for result.json, requests.csv and a picture.", writes="folder")


@command
def serve_command(
    model: Annotated[str, typer.Argument(help="A decoder as for generate; none with --turns.")],
    options: ServeCommand,
    screen: Screen,
) -> None:
    """Latencies and throughput of requests over time, goodput, and the rate or the wafers that goals need."""
    from wse_sim.serving import metrics
    from wse_sim.serving.base import ServingError

    say_without_effect(_idle(options), screen.strict)
    goals = None if options.goodput is None else metrics.read_goals(options.goodput)
    if options.search != "none" and goals is None:
        raise ServingError(f'a search for {options.search} needs goals; give --goodput "ttft:MS tpot:MS"')
    if (model == NO_MODEL) != (options.turns is not None):
        raise ServingError("give a model, or none with --turns FILE, not both")
    with progress(screen.quiet) as say:
        answer = _answer(model, options, goals, say)
    if answer is None:
        raise typer.Exit(1)
    data = as_data(model, options, answer, goals)
    if options.out is not None:
        write_files(options.out, data, answer.serving, heading(model, options, answer), goals)
    if screen.as_json:
        print_json(data)
    else:
        print(as_text(model, options, answer, data))


def _idle(options: ServeCommand) -> list[str]:
    idle = []
    if options.workload is not None:
        idle += unused(options, DRAWN, "with --workload: requests are those of the file")
    else:
        alike = ("scale_rate", "prefix_caching", "policy")
        idle += unused(
            options, alike, "without --workload: drawn prompts begin differently, and are all alike"
        )
    if options.prefill is None:
        idle += unused(options, ("handover",), "without --prefill")
    if options.replicas == 1 and options.search != "wafers":
        idle += unused(options, ("router",), "with one replica")
    if options.admission == "reserve":
        idle += unused(options, ("preemption",), "with --admission reserve: nobody is preempted")
    if options.turns is not None:
        names = (
            "wafer",
            "cluster",
            "clock",
            "systems",
            "grid",
            "context",
            "emit_turns",
            "dollars_per_wafer_hour",
            "weights_bits",
            "experts",
        )
        idle += unused(options, names, "with --turns: the table says what turns cost")
    if options.arrivals.startswith(("users:", "ramp:")):
        idle += unused(options, ("rate",), f"with --arrivals {options.arrivals}")
    if options.goodput is None or options.search == "none":
        idle += unused(options, ("attain", "max_wafers"), "without --goodput and --search")
    return idle


def _answer(model: str, options: ServeCommand, goals: dict[str, float] | None, say: Say) -> Answer | None:
    from wse_sim.serving import run

    load = _load(options)
    if options.search == "wafers" and goals is not None:
        return _fewest(model, options, load, goals, say)
    made = _replica(model, options, load, options.systems, say)
    if made is None:
        return None
    replica, systems = made
    if options.emit_turns is not None:
        replica.table.save(options.emit_turns)
    say("serve")
    if options.search == "rate" and goals is not None:
        rate, best = run.capacity(
            lambda rate: _load(options, rate),
            replica,
            goals,
            replicas=options.replicas,
            attain=options.attain,
            router=options.router,
        )
        if best is None:
            print(f"no rate meets {options.goodput}: {_lone(options, load, replica)}")
            return None
        return Answer(
            best, systems, (f"{rate:,.4g} requests/s is the highest rate that meets {options.goodput}",)
        )
    served = run.serve(load, replica, replicas=options.replicas, engine=options.engine, router=options.router)
    return Answer(served, systems)


def _lone(options: ServeCommand, load: Load, replica: Replica) -> str:
    from wse_sim.serving.bounds import bounds_of

    first = bounds_of(load, replica.rules, replica.table).first_token_s
    return f"the first token of a lone mean request takes {1e3 * first:,.4g} ms, and {options.attain:.0%} of all must meet them"


def _load(options: ServeCommand, rate: float | None = None) -> Load:
    from wse_sim.serving.traces import load_of
    from wse_sim.serving.workload import drawn_load

    if options.workload is not None:
        scale = options.scale_rate if rate is None else rate
        return load_of(options.workload, scale_rate=scale, limit=options.requests)
    asked = rate if rate is not None else options.rate
    return drawn_load(
        options.requests,
        rate=float("inf") if asked is None else asked,
        arrivals=options.arrivals,
        inputs=options.input,
        outputs=options.output,
        seed=options.seed,
    )


def _replica(
    model: str, options: ServeCommand, load: Load, systems: int | None, say: Say
) -> tuple[Replica, int] | None:
    """The replica that is asked for and its wafers; None, and the sentence on the screen, where it does not fit."""
    from wse_sim.serving.latency import read_table
    from wse_sim.serving.run import Replica, replica_of

    if options.turns is not None:
        table = read_table(options.turns)
        turn = options.max_num_batched_tokens or table.most_tokens
        replica = Replica(table, _rules(options, turn, options.kv_blocks or 10**6))
        return _special(replica, options, load, None, say), 1
    plan = _plan(model, options, load, systems, say)
    if plan is None:
        return None
    most = int((load.input_tokens + load.output_tokens).max())
    replica = replica_of(
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
    replica = _special(replica, options, load, plan, say)
    return replica, plan.systems + replica.helpers


def _special(
    replica: Replica, options: ServeCommand, load: Load, plan: GenerationPlan | None, say: Say
) -> Replica:
    """The replica with drafts, prefill elsewhere, swaps and priorities, as asked."""
    from wse_sim.serving import special

    draft = None
    if options.speculate is not None and (model := special.read_drafting(options.speculate).model):
        draft = _plan(model, options, load, None, say)
        if draft is None:
            raise typer.Exit(1)
    rules = special.with_special(
        replica.rules,
        plan,
        longest=int((load.input_tokens + load.output_tokens).max()),
        speculate=options.speculate,
        draft=draft,
        prefill=options.prefill,
        streams=options.handover == "stream",
        swap=options.preemption == "swap",
        by_priority=options.policy == "priority",
        seed=options.seed,
    )
    helpers = special.helper_wafers(plan.systems if plan else 1, rules, draft)
    return dataclasses.replace(replica, rules=rules, helper_wafers=helpers)


def _rules(options: ServeCommand, turn: int, blocks: int) -> ServingRules:
    from wse_sim.serving.base import ServingRules

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


def _plan(
    model: str, options: ServeCommand, load: Load, systems: int | None, say: Say
) -> GenerationPlan | None:
    """The plan of generation for the load's lengths; without `systems`, on the fewest wafers that fit."""
    from wse_sim.compiler.plan import Infeasible
    from wse_sim.modes.generation.plan import GenerationPlan

    count = systems or 1
    while True:
        say(f"plan {count} wafer{'s' * (count > 1)}")
        plan = _compiled(model, options, load, count)
        if isinstance(plan, GenerationPlan):
            return plan
        assert isinstance(plan, Infeasible)
        if systems is not None or count >= options.max_wafers or plan.binding != "SRAM":
            print(plan.message)
            return None
        # Weights and cache are shared: not fewer wafers than the excess says, if that is what does not fit.
        count = min(options.max_wafers, count + 1)


def _compiled(model: str, options: ServeCommand, load: Load, systems: int) -> Plan | Infeasible:
    from wse_sim import api
    from wse_sim.modes.generation import Generation

    longest = int((load.input_tokens + load.output_tokens).max())
    prompt = max(1, round(float(load.input_tokens.mean())))
    chosen = api.RunOptions(
        mode=Generation.name, phase="inference", batch=1, seq=max(options.context or longest, prompt),
        wafer=options.wafer, cluster=options.cluster, clock=options.clock, systems=systems,
        mode_options={"prompt": prompt, "grid": options.grid, "chunk": options.max_num_batched_tokens,
                      "weights_bits": options.weights_bits, "experts": options.experts},
    )  # fmt: skip
    return api.plan_of(api.read(model, chosen), chosen)


def _fewest(
    model: str, options: ServeCommand, load: Load, goals: dict[str, float], say: Say
) -> Answer | None:
    """The fewest wafers in all: replicas of every number of wafers that fits, up to the best that is known."""
    from wse_sim.serving import run

    first = _replica(model, options, load, options.systems, say)
    if first is None:
        return None
    best: Answer | None = None
    tried = []
    replica, systems = first
    while True:
        most = max(
            1,
            (
                min(options.max_wafers, best.systems * best.serving.replicas - 1)
                if best
                else options.max_wafers
            )
            // systems,
        )
        say(f"serve on replicas of {systems} wafer{'s' * (systems > 1)}")
        count, found = run.fewest_replicas(
            load, replica, goals, attain=options.attain, most=most, router=options.router
        )
        met = run.attained(found, goals) if found else 0.0
        tried.append(
            f"{systems:>4} wafers a replica: {count} replicas, {count * systems} wafers, {met:.2%} meet the goals"
            if found
            else f"{systems:>4} wafers a replica: {count * systems} wafers are too few"
        )
        if found and (best is None or count * systems < best.systems * best.serving.replicas):
            best = Answer(found, systems)
        systems += 1
        limit = min(
            options.max_wafers, best.systems * best.serving.replicas - 1 if best else options.max_wafers
        )
        if (
            options.systems is not None
            or options.turns is not None
            or systems > limit
            or systems > 2 * first[1]
        ):
            break
        more = _replica(model, options, load, systems - replica.helpers, say)
        if more is None:
            break
        replica, systems = more
    if best is None:
        print(f"no {options.max_wafers} wafers meet {options.goodput}: {_lone(options, load, first[0])}")
        return None
    return Answer(best.serving, best.systems, tuple(tried))
