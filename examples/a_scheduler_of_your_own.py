"""Your own scheduler on the machine of this project: batches of decodes of a fixed size, driven by the predictor."""

from __future__ import annotations

import wse_sim

JOINED, USERS, PROMPT, ANSWER = 4, 24, 100, 40


def main() -> None:
    """Prompts first, in chunks; then rounds of joined decodes: what does joining cost, what does it give?"""
    predictor = wse_sim.predictor("gpt2-small", wafer="wse3", context=1024, max_num_batched_tokens=16)
    for joined in (1, JOINED):
        free = [0.0] * predictor.regions  # when each region is free for the next turn
        contexts = [PROMPT] * USERS

        def passes(stages: tuple[float, ...], free: list[float] = free) -> float:
            """A turn enters when the first region is free, and nobody overtakes."""
            at = free[0]
            for region, took in enumerate(stages):
                at = free[region] = max(free[region], at) + took
            return at

        for _ in range(USERS):
            for begin in range(0, PROMPT, 16):
                end = min(PROMPT, begin + 16)
                read_s = passes(predictor.stages_s([(end - begin, end)], ends=int(end == PROMPT)))
        for _ in range(ANSWER - 1):
            contexts = [context + 1 for context in contexts]
            for first in range(0, USERS, joined):
                done_s = passes(predictor.stages_s(decode=contexts[first : first + joined]))
        rate = USERS * (ANSWER - 1) / (done_s - read_s)
        print(f"{joined} decodes a turn: {rate:,.0f} tokens/s of {USERS} users")


if __name__ == "__main__":
    main()
