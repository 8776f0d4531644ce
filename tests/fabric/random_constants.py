"""Random constants of the fabric: links, queues, rings, ramps and edges of dies that no wafer has."""

from __future__ import annotations

import random

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.hardware import load_wafer

WSE2 = FabricConfig.from_wafer(load_wafer("wse2"))
WSE3 = FabricConfig.from_wafer(load_wafer("wse3"))


def odd_config(seed: int) -> FabricConfig:
    """Return the hops of 1 to 4 cycles, dear turns, queues of 1 to 4 words a cycle, rings of 3 to 10, edges of dies,
    both arbitrations.
    """
    rng = random.Random(seed)
    return FabricConfig.from_wafer(
        load_wafer("wse2"),
        hop_cycles=rng.randint(1, 4),
        turn_cycles=rng.choice((0, 0, 1, 3, 20)),
        router_queue_wavelets=rng.randint(1, 4),
        ring_wavelets=rng.randint(3, 10),
        ramp_cycles=rng.randint(1, 3),
        default_input_wavelets=rng.randint(1, 4),
        input_queue_wavelets=tuple(rng.randint(1, 9) for _ in range(8)),
        die_crossing_cycles=rng.choice((0, 1, 7)),
        die_edge_rows=tuple(sorted(rng.sample(range(1, 6), rng.randint(0, 3)))),
        round_robin=rng.random() < 0.5,
    )


def config_of(seed: int) -> FabricConfig:
    """Return the constants: every second seed WSE-2, every tenth WSE-3, the others odd constants."""
    return WSE2 if seed % 2 else WSE3 if seed % 10 == 0 else odd_config(seed)
