"""Drawn requests: when they arrive, and how long prompts and answers are.

    arrivals   poisson, gamma:B (burstiness of vLLM: 1 is Poisson, less is burstier), constant, ramp:A:B (requests per
               second from A to B, linear in the number of the request), users:N or users:N:SECONDS (each of N users sends
               the next request when the last one is answered, after that time to think; their first ones are spread over it)
    lengths    N, fixed:N, uniform:A:B, normal:M:S, lognormal:M:S (mean and standard deviation of the length), zipf:A:MAX

One stream of random numbers for each purpose, keyed by the seed: more requests leave the first ones as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wse_sim.serving.base import NEVER, Load, ServingError, open_load, ticks
from wse_sim.units import counted

MOST_TOKENS = 10**7
MOST_REQUESTS = 10**8
ARRIVALS, INPUTS, OUTPUTS = range(3)  # purposes
Lengths = NDArray[np.int64]
Floats = NDArray[np.floating]


def drawn_load(
    requests: int, *, rate: float = 1.0, arrivals: str = "poisson", inputs: str, outputs: str, seed: int = 0
) -> Load:
    """Draw requests whose arrivals and lengths follow given distributions.

    Parameters
    ----------
    requests
        Number of requests.
    rate
        Requests per second; infinite for all at once. Not used by a closed loop or a ramp.
    arrivals, inputs, outputs
        Distributions, as in the module's docstring.

    Raises
    ------
    ServingError
        If a distribution or the rate is invalid.

    Example
    -------
    >>> load = drawn_load(3, rate=2.0, arrivals="constant", inputs="100", outputs="fixed:20")
    >>> load.arrival_ticks.tolist(), load.input_tokens.tolist()
    ([0, 5000000000, 10000000000], [100, 100, 100])
    """
    if not 1 <= requests <= MOST_REQUESTS:
        raise ServingError(
            f"{requests} requests are outside 1 to {MOST_REQUESTS:,}; give a number in that range"
        )
    input_tokens = lengths(inputs, requests, _stream(seed, INPUTS))
    output_tokens = lengths(outputs, requests, _stream(seed, OUTPUTS))
    return arriving(input_tokens, output_tokens, rate=rate, arrivals=arrivals, seed=seed)


def arriving(
    input_tokens: Lengths,
    output_tokens: Lengths,
    *,
    rate: float = 1.0,
    arrivals: str = "poisson",
    seed: int = 0,
) -> Load:
    """Return a load of requests with given lengths and drawn arrivals; see :func:`drawn_load`."""
    requests = len(input_tokens)
    name, _, rest = arrivals.partition(":")
    if name == "users":
        return _closed(rest, requests, input_tokens, output_tokens, _stream(seed, ARRIVALS))
    if not rate > 0:
        raise ServingError(f"rate {rate} is not positive; give requests per second, or inf for all at once")
    gaps = _gaps(name, rest, requests, rate, _stream(seed, ARRIVALS))
    return open_load(ticks(np.cumsum(gaps)), input_tokens, output_tokens)


def shortened(load: Load, context: int) -> Load:
    """Return a load without requests that are longer than a context; these fail on arrival, and are counted.

    A request that waits for a failed one waits for the predecessor of that one instead.

    Raises
    ------
    ServingError
        If no request is left.
    """
    long = load.input_tokens + load.output_tokens > context
    if not long.any():
        return load
    longest = int((load.input_tokens + load.output_tokens).max())
    if long.all():
        raise ServingError(
            f"every request is longer than the context of {context:,} tokens (the longest has {longest:,}); "
            "use a longer context or shorter requests"
        )
    after = load.after.copy()
    for row in range(len(after)):
        while after[row] >= 0 and long[after[row]]:
            after[row] = after[after[row]]
    refused = int(long.sum())
    note = f"{refused:,} requests are longer than the context of {context:,} tokens (the longest has {longest:,}) and fail"
    after[long] = NEVER
    some = dataclasses.replace(load, after=after).only(~long)
    return dataclasses.replace(some, notes=(*load.notes, note), refused=refused)


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, purpose]))


def _gaps(name: str, rest: str, requests: int, rate: float, draw: np.random.Generator) -> Floats:
    """Return the seconds before each request; a constant rate starts at once."""
    if math.isinf(rate) and name != "ramp":
        return np.zeros(requests)
    if name == "poisson" and not rest:
        return draw.exponential(1 / rate, requests)
    if name == "constant" and not rest:
        return np.concatenate([[0.0], np.full(requests - 1, 1 / rate)])
    if name == "gamma":
        (shape,) = _numbers("arrivals", f"{name}:{rest}", rest, 1)
        return draw.gamma(shape, 1 / (rate * shape), requests)
    if name == "ramp":
        first, last = _numbers("arrivals", f"{name}:{rest}", rest, 2)
        return draw.exponential(1 / np.linspace(first, last, requests))
    raise ServingError(
        f"arrivals '{name}{':' if rest else ''}{rest}' are not known; use poisson, gamma:B, constant, ramp:A:B or users:N"
    )


def _closed(
    rest: str, requests: int, input_tokens: Lengths, output_tokens: Lengths, draw: np.random.Generator
) -> Load:
    """Return a closed load: request n follows request n - N, and the first ones arrive within one think
    time."""
    first, _, think = rest.partition(":")
    users = counted(first)
    if not users:
        raise ServingError(
            f"arrivals 'users:{rest}' have no number of users; give users:N or users:N:SECONDS"
        )
    (think_s,) = _numbers("arrivals", f"users:{rest}", think, 1, least=0.0) if think else (0.0,)
    after = np.arange(requests) - users
    after[after < 0] = NEVER
    pause = np.where(after < 0, 0, ticks(np.array(think_s)))
    begun = np.sort(ticks(think_s * draw.random(min(users, requests))))
    arrival = np.full(
        requests, int(begun[-1]), np.int64
    )  # of later requests: not earlier than the first ones
    arrival[: len(begun)] = begun
    return Load(arrival, input_tokens, output_tokens, after, pause.astype(np.int64))


def lengths(law: str, count: int, draw: np.random.Generator) -> Lengths:
    """Draw `count` lengths of at least one token.

    Raises
    ------
    ServingError
        If the distribution is unknown.
    """
    name, _, rest = law.partition(":")
    if counted(law) is not None:
        name, rest = "fixed", law
    if name not in _LAWS:
        raise ServingError(
            f"lengths '{law[:80]}' are not known; use a number, uniform:A:B, normal:M:S, lognormal:M:S or zipf:A:MAX"
        )
    numbers, make = _LAWS[name]
    given = _numbers("lengths", law, rest, numbers)
    values = np.rint(make(draw, count, *given))
    return np.clip(values, 1, MOST_TOKENS).astype(np.int64)


def _lognormal(draw: np.random.Generator, count: int, mean: float, deviation: float) -> Floats:
    """Draw lognormal lengths: mean = exp(mu + sigma^2 / 2), variance = (exp(sigma^2) - 1) mean^2."""
    variance = math.log1p((deviation / mean) ** 2)
    return draw.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)


def _zipf(draw: np.random.Generator, count: int, exponent: float, most: float) -> Floats:
    """Draw lengths k up to `most` with probability proportional to k^-exponent."""
    weights = np.arange(1, int(min(most, MOST_TOKENS)) + 1, dtype=float) ** -exponent
    return 1.0 + np.searchsorted(np.cumsum(weights) / weights.sum(), draw.random(count))


def _uniform(draw: np.random.Generator, count: int, low: float, high: float) -> Floats:
    """Draw integers from `low` to `high`, both included."""
    if high < low:
        raise ServingError(
            f"lengths uniform:{low:g}:{high:g} have bounds in the wrong order; give the smaller first"
        )
    return draw.integers(int(low), int(high) + 1, count).astype(float)


_LAWS: dict[str, tuple[int, Callable[..., Floats]]] = {
    "fixed": (1, lambda draw, count, n: np.full(count, n)),
    "uniform": (2, _uniform),
    "normal": (2, lambda draw, count, mean, deviation: draw.normal(mean, deviation, count)),
    "lognormal": (2, _lognormal),
    "zipf": (2, _zipf),
}


def _numbers(what: str, law: str, text: str, count: int, least: float = 1e-9) -> tuple[float, ...]:
    """Parse `count` finite numbers that are separated by ':'.

    Raises
    ------
    ServingError
        If the text is anything else.
    """
    found = []
    for part in text.split(":"):
        try:
            number = float(part) if part.isascii() and "_" not in part else math.nan
        except ValueError:
            number = math.nan
        found.append(number)
    if len(found) != count or not all(math.isfinite(n) and least <= n <= MOST_TOKENS for n in found):
        raise ServingError(
            f"{what} '{law[:80]}' have invalid numbers; give {count} from {least:g} to {MOST_TOKENS:,}, with ':' between"
        )
    return tuple(found)
