"""Cache blocks in machine code: like :mod:`wse_sim.serving.blocks`, with 64-bit keys hashed from ids.

Free blocks are a linked ring through the last slot. Keys are in a hash table with open addressing and backward-shift deletion.
Without a prefix cache blocks are only counted.
"""

from __future__ import annotations

from wse_sim.jit import inlined_kernel
from wse_sim.serving.fast_state import FREE, FREE_ROWS, Int, Limits, Replica, Requests
from wse_sim.serving.speculation import FIRST, SECOND, STEP

SIGNED_FIRST, SIGNED_SECOND, SIGNED_STEP = FIRST - 2**64, SECOND - 2**64, STEP - 2**64
OWN = 0x5BD1E995  # keys of blocks that no other request can share


@inlined_kernel
def mixed(x: int) -> int:
    """Return :func:`wse_sim.serving.speculation.mixed` of a signed integer."""
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * SIGNED_FIRST
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * SIGNED_SECOND
    return x ^ ((x >> 33) & 0x7FFFFFFF)


@inlined_kernel
def key_after(requests: Requests, number: int, place: int, chain: int, size: int) -> int:
    """Return the key of a block of a request, from that of the previous block; never 0."""
    first = place * size
    begin = requests.starts[number]
    if requests.starts[number + 1] == begin or first + size > requests.input[number]:
        return mixed(mixed((number + 1) * SIGNED_STEP + OWN) + place) | 1
    unit = requests.unit
    key = mixed(chain ^ (first % unit + 1))
    for place_of_id in range(begin + first // unit, begin + (first + size + unit - 1) // unit):
        key = mixed((key ^ requests.ids[place_of_id]) * SIGNED_STEP + 1)
    return key | 1


@inlined_kernel
def find(replica: Replica, key: int) -> int:
    """Return the block with a key, or -1 if there is none."""
    mask = len(replica.keys) - 1
    at = mixed(key) & mask
    while replica.keys[at] != 0:
        if replica.keys[at] == key:
            return int(replica.block_of[at])
        at = (at + 1) & mask
    return -1


@inlined_kernel
def insert(replica: Replica, key: int, block: int) -> None:
    """Insert a block's key, which must not be in the table yet."""
    mask = len(replica.keys) - 1
    at = mixed(key) & mask
    while replica.keys[at] != 0:
        at = (at + 1) & mask
    replica.keys[at] = key
    replica.block_of[at] = block
    replica.key_of[block] = key


@inlined_kernel
def remove(replica: Replica, block: int) -> None:
    """Remove a block's key, and move the entries that follow it up."""
    mask, key = len(replica.keys) - 1, replica.key_of[block]
    replica.key_of[block] = 0
    at = mixed(key) & mask
    while replica.keys[at] != key:
        at = (at + 1) & mask
    hole = at
    while True:
        at = (at + 1) & mask
        if replica.keys[at] == 0:
            break
        wanted = mixed(replica.keys[at]) & mask
        if (at - wanted) & mask >= (at - hole) & mask:
            replica.keys[hole] = replica.keys[at]
            replica.block_of[hole] = replica.block_of[at]
            hole = at
    replica.keys[hole] = 0


@inlined_kernel
def unlink(replica: Replica, block: int) -> None:
    """Remove a block from the free ones."""
    one, two = replica.before[block], replica.behind[block]
    replica.behind[one] = two
    replica.before[two] = one


@inlined_kernel
def grow(requests: Requests, replica: Replica, limits: Limits, number: int, blocks: int) -> None:
    """Allocate blocks until the request holds `blocks`; the caller has checked that enough are free."""
    more = blocks - requests.held[number]
    if more <= 0:
        return
    replica.at[FREE] -= more
    if limits.prefix:
        row, end = requests.row[number], limits.blocks
        for place in range(requests.held[number], blocks):
            block = replica.behind[end]
            unlink(replica, block)
            if replica.key_of[block] != 0:
                remove(replica, block)
            replica.users[block] = 1
            replica.rows[row, place] = block
    requests.held[number] = blocks


@inlined_kernel
def shrink(requests: Requests, replica: Replica, limits: Limits, number: int, blocks: int) -> None:
    """Release the last blocks of a request until `blocks` are left."""
    if not limits.prefix:
        replica.at[FREE] += requests.held[number] - blocks
        requests.held[number] = blocks
        return
    row, end = requests.row[number], limits.blocks
    for place in range(requests.held[number] - 1, blocks - 1, -1):
        block = replica.rows[row, place]
        replica.users[block] -= 1
        if replica.users[block] == 0:
            last = replica.before[end]
            replica.behind[last] = block
            replica.before[block] = last
            replica.behind[block] = end
            replica.before[end] = block
            replica.at[FREE] += 1
    requests.held[number] = blocks


@inlined_kernel
def release(requests: Requests, replica: Replica, limits: Limits, number: int) -> None:
    """Release all blocks and their row."""
    shrink(requests, replica, limits, number, 0)
    if limits.prefix:
        replica.free_rows[replica.at[FREE_ROWS]] = requests.row[number]
        replica.at[FREE_ROWS] += 1


@inlined_kernel
def register(
    requests: Requests, replica: Replica, limits: Limits, number: int, before: int, computed: int
) -> None:
    """Register keys for the blocks that became full while the computed tokens grew from `before` to `computed`."""
    if not limits.prefix:
        return
    row = requests.row[number]
    for place in range(before // limits.block, computed // limits.block):
        key = key_after(requests, number, place, requests.chain[number], limits.block)
        requests.chain[number] = key
        block = replica.rows[row, place]
        if replica.key_of[block] == 0 and find(replica, key) < 0:
            insert(replica, key, block)


@inlined_kernel
def found(requests: Requests, replica: Replica, limits: Limits, number: int) -> tuple[int, int]:
    """Return the number of cached full blocks that match a request's beginning, and how many of them no
    request holds."""
    count, resting, chain = 0, 0, 0
    if limits.prefix:
        for place in range((requests.input[number] + requests.emitted[number] - 1) // limits.block):
            chain = key_after(requests, number, place, chain, limits.block)
            block = find(replica, chain)
            if block < 0:
                break
            count += 1
            resting += 1 if replica.users[block] == 0 else 0
    return count, resting


@inlined_kernel
def share(requests: Requests, replica: Replica, limits: Limits, number: int, count: int) -> None:
    """Allocate a row for the request and take the `count` blocks that were found in the cache."""
    if not limits.prefix:
        return
    replica.at[FREE_ROWS] -= 1
    row = replica.free_rows[replica.at[FREE_ROWS]]
    requests.row[number] = row
    chain = 0
    for place in range(count):
        chain = key_after(requests, number, place, chain, limits.block)
        block = find(replica, chain)
        if replica.users[block] == 0:
            unlink(replica, block)
            replica.at[FREE] -= 1
        replica.users[block] += 1
        replica.rows[row, place] = block
    requests.held[number] = count
    requests.chain[number] = chain


@inlined_kernel
def without(queue: Int, length: int, number: int) -> int:
    """Remove a request from a queue; return the queue's new length."""
    k = 0
    while k < length and queue[k] != number:
        k += 1
    if k == length:
        return length
    for j in range(k, length - 1):
        queue[j] = queue[j + 1]
    return length - 1
