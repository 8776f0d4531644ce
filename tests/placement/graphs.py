"""Generated instances for the placement tests, in the contest's format."""

from __future__ import annotations

import numpy as np

HEADER = (
    "(*\ntest={name}\nwidth={w}\nheight={h}\nwdeltat={wt}\nwlength={wl}\nwadapter=0\nmemlimit=24576\n*)\n"
)


def kgraph_text(
    convs: list[tuple[int, ...]],
    edges: list[tuple[int, int]],
    *,
    width: int = 100,
    height: int = 100,
    wdeltat: float = 1,
    wlength: float = 1,
    name: str = "generated",
) -> str:
    """Return the text of a graph of convolutions (H, W, R, S, C, K, T), numbered from 1, with its edges from 0."""
    lines = [HEADER.format(name=name, w=width, h=height, wt=wdeltat, wl=wlength)]
    lines.append("(* Node Definitions *)")
    for i, (H, W, R, S, C, K, T) in enumerate(convs, 1):
        lines.append(f"conv[{i}] W={W} H={H} R={R} S={S} C={C} K={K} T={T} U={T} name='k{i}'")
    lines.append("(* Connectivity *)")
    for a, b in edges:
        lines.append(f"conv[{a + 1}]:y -> conv[{b + 1}]:x, shape:[1][1][1]")
    return "\n".join(lines) + "\n"


def random_convs(n: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """`n` convolutions of 1x1 or 3x3 filters with few sizes, so that shapes repeat as in a network."""
    result = []
    for _ in range(n):
        side = int(rng.choice([7, 14, 28]))
        filt = int(rng.choice([1, 3]))
        c, k = (int(v) for v in rng.choice([16, 32, 64], size=2))
        result.append((side, side, filt, filt, c, k, 1))
    return result


def chain(n: int) -> list[tuple[int, int]]:
    """Return the edges of a chain."""
    return [(i, i + 1) for i in range(n - 1)]


def residual(n: int) -> list[tuple[int, int]]:
    """Return a chain with a skip over every second block."""
    return chain(n) + [(i, i + 2) for i in range(0, n - 2, 2)]


def unet(n: int) -> list[tuple[int, int]]:
    """Return a chain with skips from block i to block n-1-i."""
    return chain(n) + [(i, n - 1 - i) for i in range(n // 2 - 1)]


def complete(n: int) -> list[tuple[int, int]]:
    """Return edges between every pair."""
    return [(i, j) for i in range(n) for j in range(i + 1, n)]
