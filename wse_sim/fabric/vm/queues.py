"""Input and output queues of a core, FIFOs, and which cores a move wakes."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.jit import inlined_kernel


@inlined_kernel
def wake_next(c, size, listed, ready):
    """Wake core `c` in the next cycle, unless its timer runs."""
    parity = 1 - size[S.PARITY]
    if (listed[c] >> parity) & 1 == 0 and listed[c] & 4 == 0:
        listed[c] |= np.uint8(1 << parity)
        ready[parity, size[S.N_NEXT]] = c
        size[S.N_NEXT] += 1


@inlined_kernel
def wake_now(c, size, listed, ready):
    """Wake core `c` in this cycle, unless its timer runs."""
    parity = size[S.PARITY]
    if (listed[c] >> parity) & 1 == 0 and listed[c] & 4 == 0:
        listed[c] |= np.uint8(1 << parity)
        ready[parity, size[S.N_READY]] = c
        size[S.N_READY] += 1


@inlined_kernel
def wake_router(c, size, router_listed, router_list):
    """Router `c` is looked at."""
    if router_listed[c] == 0:
        router_listed[c] = 1
        router_list[size[S.N_ROUTERS]] = c
        size[S.N_ROUTERS] += 1


@inlined_kernel
def enter(e, c, slot, word, flag, stamp, m):
    """Append a word to queue `e` of router `c`."""
    i = (np.int64(m.q_head[e]) + np.int64(m.q_count[e])) % m.sets[S.CAP]
    m.q_word[e, i] = np.uint32(word & 0xFFFFFFFF)
    m.q_flag[e, i] = np.uint8(flag)
    m.q_stamp[e, i] = stamp
    m.q_count[e] += np.uint8(1)
    m.waiting[c] += 1
    m.occupied[c] |= np.int64(1) << slot
    wake_router(c, m.size, m.router_listed, m.router_list)


@inlined_kernel
def visible(c, q, t, iq_count, iq_last):
    """Words of input queue `q` that the core can read in cycle t: not those of this cycle."""
    n = np.int64(iq_count[q, c])
    if n > 0 and iq_last[q, c] == t:
        n -= 1
    return n


@inlined_kernel
def head_meta(c, q, iq_meta, iq_head):
    """Slot and flag of the oldest word."""
    return np.int64(iq_meta[q, c, iq_head[q, c]])


@inlined_kernel
def deliver(c, q, slot, word, flag, t, m):
    """Put a word into input queue `q`; the caller has checked the room."""
    m.core[c, S.WAITS_INPUT] = 0
    i = (m.iq_head[q, c] + m.iq_count[q, c]) % m.in_depth[q]
    m.iq_word[q, c, i] = np.uint32(word)
    m.iq_meta[q, c, i] = np.uint8(slot | (flag << 6))
    m.iq_count[q, c] += 1
    m.iq_last[q, c] = t
    wake_next(c, m.size, m.listed, m.ready)


@inlined_kernel
def take(c, q, iq_head, iq_word, iq_count, in_depth, core):
    """Take the oldest word."""
    head = iq_head[q, c]
    word = np.int64(iq_word[q, c, head])
    iq_head[q, c] = (head + 1) % in_depth[q]
    iq_count[q, c] -= 1
    core[c, S.RECEIVED] += 1
    return word


@inlined_kernel
def push(c, q, slot, word, flag, t, m):
    """Put a word into output queue `q`; the caller has checked the room."""
    i = (m.oq_head[q, c] + m.oq_count[q, c]) % m.out_depth[q]
    m.oq_word[q, c, i] = np.uint32(word & 0xFFFFFFFF)
    m.oq_meta[q, c, i] = np.uint8(slot | (flag << 6))
    m.oq_time[q, c, i] = t
    m.oq_count[q, c] += 1
    m.core[c, S.SENT] += 1
    if m.ring_listed[c] == 0:
        m.ring_listed[c] = 1
        m.rings_list[m.size[S.N_RINGS]] = c
        m.size[S.N_RINGS] += 1
