"""Serving in studies: the options of ``wse-sim serve`` as parameters, the numbers of its result as outputs.

A setting that has a parameter `serve.*` is served; all others run.  The machine (`wafer`, `cluster`, `systems`, `clock`)
and the model are those of every study.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.errors import ConfigError
from wse_sim.files import Values
from wse_sim.options import Option
from wse_sim.serving.options import ServingOptions

PREFIX = "serve."
SHARED = ("wafer", "cluster", "clock", "systems")
"""Options of every run, which a setting states under their own names."""
NOT_VARIED = ("turns",)
USERS, THINK = "users", "think_s"
"""Numbers instead of `arrivals: users:N:SECONDS`, so that they can be an axis."""
TIMES = tuple(
    f"{which}_{name}_ms"
    for name in ("ttft", "tpot", "itl", "e2el")
    for which in ("mean", "median", "std", "p50", "p90", "p95", "p99")
)
OF_RESULT = (
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "max_concurrent_requests",
)  # fmt: skip
OWN = ("wafers", "replicas", "regions", "turn_tokens", "kv_blocks", "preemptions", "capacity_rps")
ENERGY = ("joules_per_output_token", "dollars_per_million_output_tokens")
WORKED_OUT = ("users", "attained", "output_tokens_per_s_per_wafer", "capacity_rps_per_wafer")
OUTPUTS = (*OF_RESULT, *TIMES, *OWN, *ENERGY, *WORKED_OUT)
UNITS = {
    "duration": "s", "request_throughput": "requests/s", "request_goodput": "requests/s", "capacity_rps": "requests/s",
    "output_throughput": "tokens/s", "total_token_throughput": "tokens/s", "joules_per_output_token": "J",
    "dollars_per_million_output_tokens": "dollars", "output_tokens_per_s_per_wafer": "tokens/s",
    "capacity_rps_per_wafer": "requests/s", **dict.fromkeys(TIMES, "ms"),
}  # fmt: skip
LESS_IS_BETTER = frozenset((*TIMES, *ENERGY, "duration", "failed", "wafers", "replicas", "preemptions"))


def options() -> list[Option]:
    """Return the serving options that a study can vary."""
    return [one for one in ServingOptions.options() if one.name not in (*SHARED, *NOT_VARIED)]


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :class:`ServingOptions` for a setting; users and think time become arrivals.

    Raises
    ------
    ConfigError
        If a think time is given without users, or users and arrivals are both given.
    """
    found = {name: value for name, value in fields.items() if name not in (USERS, THINK)}
    if fields.get(USERS) is not None:
        if "arrivals" in fields:
            raise ConfigError("serve.users and serve.arrivals both state the arrivals; keep one of them")
        found["arrivals"] = f"users:{fields[USERS]}:{fields.get(THINK) or 0:g}"
    elif fields.get(THINK) is not None:
        raise ConfigError("serve.think_s needs serve.users; add it")
    return found


def of_answer(options_: ServingOptions, data: Values) -> dict[str, float]:
    """Return the numbers of a serving result (the data of result.json), by name."""
    own = data["wse_sim"]
    found: dict[str, Any] = {name: data[name] for name in (*OF_RESULT, *TIMES)}
    found |= {name: own[name] for name in OWN} | {name: (own["energy"] or {}).get(name) for name in ENERGY}
    name, _, rest = options_.arrivals.partition(":")
    if options_.draws_arrivals and name == "users":
        found["users"] = rest.partition(":")[0]
    good, rate = data["request_goodput"], data["request_throughput"]
    if good is not None and rate:
        found["attained"] = good / rate * data["completed"] / data["num_prompts"]
    found["output_tokens_per_s_per_wafer"] = data["output_throughput"] / own["wafers"]
    if own["capacity_rps"] is not None:
        found["capacity_rps_per_wafer"] = own["capacity_rps"] / own["wafers"]
    if data["median_tpot_ms"]:
        found["tokens_per_s_per_user"] = 1e3 / data["median_tpot_ms"]
    return {key: float(value) for key, value in found.items() if value is not None}
