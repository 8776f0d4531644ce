"""Messages of the sanitizer: place in the program, core, cycle; and the words that nothing read."""

from __future__ import annotations

import dataclasses

import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm import watch as W
from wse_sim.fabric.vm.image import Image, Symbol

KIND_NAMES = ("unwritten", "bounds", "bounds", "microthread in use", "queue shared", "race", "null")
UNREAD = "unread words"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One place of a program that did what it should not: kind, ``file:line (function)``, first core, first cycle, sentence, times."""

    kind: str
    where: str
    x: int
    y: int
    cycle: int
    text: str
    times: int = 1

    def __str__(self) -> str:
        """The sentence with its place."""
        often = f" ({self.times:,} times in all)" if self.times > 1 else ""
        return f"{self.where}: core ({self.x}, {self.y}) at cycle {self.cycle:,}: {self.text}{often}"

    def as_dict(self) -> dict[str, object]:
        """The finding as JSON data."""
        return dataclasses.asdict(self)


def findings(m: S.Machine, image: Image) -> list[Finding]:
    """All findings so far, in the order of their first cycle; empty if the sanitizer does not watch."""
    found = []
    for row in m.found[: int(m.size[S.N_FOUND])]:
        kind, c, cycle, pc = (int(v) for v in row[:4])
        y, x = divmod(c, image.cols)
        text = _sentence(m, image, kind, c, [int(v) for v in row[4:]])
        times = int(m.found_count[kind, pc])
        found.append(Finding(KIND_NAMES[kind], image.where(pc), x, y, cycle, text, times))
    return sorted(found, key=lambda f: (f.cycle, f.where, f.kind))


def _name(m: S.Machine, image: Image, c: int, word: int) -> str:
    """Return ``word 3 of 'buffer'`` for an address of a core."""
    cls = int(m.core[c, S.CLASS])
    owner = int(m.owner[cls, word]) if 0 <= word < m.owner.shape[1] else 0
    if not owner:
        return f"word {word} of the memory"
    held = image.classes[cls].symbols[owner - 1]
    return f"word {word - held.address} of '{_plain(held)}'"


def _plain(symbol: Symbol) -> str:
    """The name as the program has it, without its module."""
    return symbol.name.rpartition("#")[2].partition(".")[2] or symbol.name


def _sentence(m: S.Machine, image: Image, kind: int, c: int, v: list[int]) -> str:
    cls, cols = int(m.core[c, S.CLASS]), image.cols
    if kind == W.UNWRITTEN:
        return f"reads {_name(m, image, c, v[0])}, which was never written"
    if kind == W.NULL:
        return (
            f"{'writes' if v[1] else 'reads'} address {v[0]}, where no variable is: a pointer without a value"
        )
    if kind == W.BEYOND:
        held = image.classes[cls].symbols[v[1] - 1]
        does = "writes" if v[2] else "reads"
        return f"{does} word {v[0] - held.address} of '{_plain(held)}', which has words 0 to {held.words - 1}: it is {_name(m, image, c, v[0])}"
    if kind == W.BEYOND_VECTOR:
        held = image.classes[cls].symbols[int(m.owner[cls, v[0]]) - 1]
        does = "writes" if v[2] else "reads"
        return (
            f"a vector operation that begins in '{_plain(held)}' {does} {_name(m, image, c, v[1])}; '{_plain(held)}' has words 0 to "
            f"{held.words - 1}: its descriptor is longer than the array, or begins too far in it"
        )
    if kind == W.THREAD_TAKEN:
        return f"starts microthread {v[0]} while it runs the operation of {image.where(v[1])}, and waits for its end"
    if kind == W.QUEUE_SHARED:
        word = "input" if v[2] else "output"
        return f"uses {word} queue {v[0]} while the operation of {image.where(v[1])} uses it: which operation gets which word is a race"
    a, b = divmod(v[0], cols), divmod(v[1], cols)
    y, x = divmod(c, cols)
    return (
        f"two senders on color {int(m.color_of[v[3]])}: words of core ({a[1]}, {a[0]}) and of core ({b[1]}, {b[0]}), sent at "
        f"{image.where(v[2])}, meet in the router of core ({x}, {y}), and their order is a race"
    )


def unread_words(m: S.Machine, image: Image) -> list[Finding]:
    """Words that are left in queues, by color, queue and line that sent them."""
    found: dict[tuple[str, int, str], Finding] = {}
    if not len(m.written):
        return []
    n = image.n_cores

    def add(c: int, color: int, place: str, count: int, origin: np.ndarray) -> None:
        sender, pc, cycle = (int(v) for v in origin)
        where = image.where(pc) if sender >= 0 else "the host"
        key = (where, color, place)
        if key in found:
            kept = found[key]
            found[key] = dataclasses.replace(kept, times=kept.times + count)
            return
        y, x = divmod(sender if sender >= 0 else c, image.cols)
        text = f"sends words of color {color} that nothing reads: they are left in {place} of core ({c % image.cols}, {c // image.cols})"
        found[key] = Finding(UNREAD, where, x, y, cycle, text, count)

    for q, c in zip(*np.nonzero(m.iq_count), strict=True):
        head = int(m.iq_head[q, c])
        color = int(m.color_of[int(m.iq_meta[q, c, head]) & 63])
        add(int(c), color, f"input queue {q}", int(m.iq_count[q, c]), m.iq_from[q, c, head])
    counts = m.q_count.reshape(-1, n, 5)
    for slot, c, port in zip(*np.nonzero(counts), strict=True):
        e = (int(slot) * n + int(c)) * 5 + int(port)
        add(
            int(c),
            int(m.color_of[slot]),
            "the router",
            int(counts[slot, c, port]),
            m.q_from[e, int(m.q_head[e])],
        )
    for q, c in zip(*np.nonzero(m.oq_count), strict=True):
        head = int(m.oq_head[q, c])
        color = int(m.color_of[int(m.oq_meta[q, c, head]) & 63])
        add(int(c), color, f"output queue {q}", int(m.oq_count[q, c]), m.oq_from[q, c, head])
    return list(found.values())
