"""Cache blocks: the requests that hold them, and the blocks that later requests with the same prefix can reuse.

With a prefix cache, a full block has a key: a hash chain over all tokens up to its end. A block without users keeps its key until it is
reused. The least recently freed blocks are reused first, and those of one request from its end to its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from wse_sim.serving.base import Load

Key = Hashable


@dataclass(frozen=True)
class PrefixKeys:
    """Keys of the blocks of a load's requests.

    Two blocks of prompts with known content are equal if all content up to their ends is equal. Every other
    block is equal only to itself; a request finds such blocks again after a preemption.
    """

    load: Load
    block_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "_chains", {})

    def __call__(self, number: int, block: int) -> Key:
        """Return the key of a block of a request."""
        content, size = self.load.content, self.block_tokens
        if content is None or (block + 1) * size > self.load.input_tokens[number]:
            return number, block
        chains: dict[int, list[int]] = self.__dict__["_chains"]
        chain, unit = chains.setdefault(number, []), self.load.content_tokens
        ids = content[number]
        while len(chain) <= block:
            first = len(chain) * size
            part = ids[first // unit : -(-(first + size) // unit)].tolist()
            chain.append(hash((chain[-1] if chain else 0, first % unit, *part)))
        return chain[block]


class BlockPool:
    """The cache blocks of a replica; a request holds a list of them, in the order of its tokens."""

    def __init__(self, blocks: int, block_tokens: int, keys: Callable[[int, int], Key] | None = None) -> None:
        self.block_tokens, self._keys = block_tokens, keys
        self._free = dict.fromkeys(range(blocks))  # in the order of reuse
        self._users = [0] * blocks
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """Return the number of blocks for some tokens."""
        return -(-tokens // self.block_tokens)

    def grow(self, held: list[int], tokens: int) -> None:
        """Allocate blocks until `tokens` tokens fit."""
        while len(held) < self.needed(tokens):
            block = next(iter(self._free))
            del self._free[block]
            if block in self._key_of:
                del self._block_of[self._key_of.pop(block)]
            self._users[block] = 1
            held.append(block)

    def trim(self, held: list[int], tokens: int) -> None:
        """Release the blocks of `held` beyond those that `tokens` tokens need."""
        beyond = held[self.needed(tokens) :]
        del held[self.needed(tokens) :]
        self.release(beyond)

    def release(self, held: list[int]) -> None:
        """Release all blocks of `held`, the last one first."""
        for block in reversed(held):
            self._users[block] -= 1
            if not self._users[block]:
                self._free[block] = None
        held.clear()

    def register(self, number: int, held: list[int], before: int, computed: int) -> None:
        """Register keys for the blocks that became full while the computed tokens grew from `before` to
        `computed`."""
        if self._keys is None:
            return
        for place in range(before // self.block_tokens, computed // self.block_tokens):
            key = self._keys(number, place)
            if key not in self._block_of and held[place] not in self._key_of:
                self._block_of[key], self._key_of[held[place]] = held[place], key

    def found(self, number: int, length: int) -> list[int]:
        """Return the cached full blocks that match the beginning of a request; its last token is always
        computed."""
        blocks: list[int] = []
        if self._keys is not None:
            for place in range((length - 1) // self.block_tokens):
                block = self._block_of.get(self._keys(number, place))
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def has_room(self, tokens: int, found: list[int]) -> bool:
        """Return whether enough blocks are free for some tokens, in addition to those found in the cache."""
        resting = sum(not self._users[block] for block in found)
        return self.needed(tokens) - len(found) <= self.free - resting

    def share(self, held: list[int], found: list[int]) -> None:
        """Append the blocks `found` in the prefix cache to `held`, and count one more user of each."""
        for block in found:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1
            held.append(block)
