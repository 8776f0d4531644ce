"""Input and output queues of a core, FIFOs, and who is woken by what moves."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.jit import inlined_kernel


@inlined_kernel
def wake_next(c, m):
    """Core `c` takes the next cycle, unless it counts cycles of its own."""
    size, parity = m.size, 1 - m.size[S.PARITY]
    if (m.listed[c] >> parity) & 1 == 0 and m.listed[c] & 4 == 0:
        m.listed[c] |= np.uint8(1 << parity)
        m.ready[parity, size[S.N_NEXT]] = c
        size[S.N_NEXT] += 1


@inlined_kernel
def wake_now(c, m):
    """Core `c` takes this cycle, unless it counts cycles of its own."""
    size, parity = m.size, m.size[S.PARITY]
    if (m.listed[c] >> parity) & 1 == 0 and m.listed[c] & 4 == 0:
        m.listed[c] |= np.uint8(1 << parity)
        m.ready[parity, size[S.N_READY]] = c
        size[S.N_READY] += 1


@inlined_kernel
def wake_router(c, m):
    """Router `c` is looked at."""
    if m.router_listed[c] == 0:
        m.router_listed[c] = 1
        m.router_list[m.size[S.N_ROUTERS]] = c
        m.size[S.N_ROUTERS] += 1


@inlined_kernel
def visible(c, q, t, m):
    """Words of input queue `q` that the core can read in cycle t: not those of this cycle."""
    n = np.int64(m.iq_count[q, c])
    if n > 0 and m.iq_last[q, c] == t:
        n -= 1
    return n


@inlined_kernel
def head_meta(c, q, m):
    """Slot and flag of the oldest word."""
    return np.int64(m.iq_meta[q, c, m.iq_head[q, c]])


@inlined_kernel
def deliver(c, q, slot, word, flag, t, m):
    """Put a word into input queue `q`; the caller has checked the room."""
    i = (m.iq_head[q, c] + m.iq_count[q, c]) % m.in_depth[q]
    m.iq_word[q, c, i] = np.uint32(word)
    m.iq_meta[q, c, i] = np.uint8(slot | (flag << 6))
    m.iq_count[q, c] += 1
    m.iq_last[q, c] = t
    wake_next(c, m)


@inlined_kernel
def take(c, q, m):
    """Take the oldest word."""
    head = m.iq_head[q, c]
    word = np.int64(m.iq_word[q, c, head])
    m.iq_head[q, c] = (head + 1) % m.in_depth[q]
    m.iq_count[q, c] -= 1
    m.core[c, S.RECEIVED] += 1
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
