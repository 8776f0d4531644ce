"""Who waits for what at a standstill: the graph of waits, from the host's command to its cause.

A node is a tuple (kind, core, ...). An edge leads to what must happen first. A leaf states why it cannot
happen. Edges to one of several alternatives (any of some words could wake an idle core) are soft: causes
behind them weigh less than the idle core itself.
"""

from __future__ import annotations

import dataclasses

from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import CONTROL, DATA, LOCAL, Image, Task

RAMP = 4
SIDES = ("north", "east", "south", "west", "its core")
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))
Node = tuple[str, int, int, int]

# How much a leaf explains: words that cannot continue, a fault of routes or bindings, what is blocked, what nobody reads, a core at rest, a fact
# next to these.
STUCK, WRONG, BLOCKED, UNREAD, REST, BESIDE = 8, 6, 4, 3, 2, 1


@dataclasses.dataclass(frozen=True)
class Why:
    """Facts of a node: a clause, prerequisites, the weight of a leaf (0: no leaf), and alternatives of which
    one suffices."""

    text: str
    after: tuple[Node, ...] = ()
    weight: int = 0
    ways: tuple[Node, ...] = ()


class WaitGraph:
    """Explains single waits of a machine that stopped."""

    def __init__(self, machine: S.Machine, image: Image) -> None:
        self.m, self.image, self.n = machine, image, image.n_cores

    # -- names

    def place(self, c: int) -> str:
        """``core (x, y)``."""
        return f"core ({c % self.image.cols}, {c // self.image.cols})"

    def color(self, slot: int) -> int:
        """Color of a slot, -1 for none."""
        return int(self.m.color_of[slot]) if slot >= 0 else -1

    def tasks(self, c: int) -> tuple[Task, ...]:
        """Tasks of a core's program."""
        k = int(self.image.core_class[c])
        return self.image.classes[k].tasks if k >= 0 else ()

    def task_of_queue(self, c: int, q: int) -> Task | None:
        """The data task that takes the words of an input queue."""
        is_wse3 = self.image.arch == "wse3"
        for task in self.tasks(c):
            if task.kind != DATA:
                continue
            if task.id == q if is_wse3 else self._queue(c, self._slot(task.id)) == q:
                return task
        return None

    def _slot(self, color: int) -> int:
        return int(self.m.slot_of[color]) if 0 <= color < len(self.m.slot_of) else -1

    def _queue(self, c: int, slot: int) -> int:
        return int(self.m.color_queue[c, slot]) if slot >= 0 else -1

    def live(self, c: int) -> list[int]:
        """Return the threads of a core with an operation, 0 the main thread."""
        return [k for k in range(S.N_THREADS) if self.m.threads[k, c, S.T_OP] > 0]

    def _field(self, c: int, k: int, place: int, field: int) -> int:
        return int(self.m.threads[k, c, S.OPERAND0 + place * S.OPERAND_FIELDS + field])

    def _line(self, c: int, k: int) -> str:
        return self.image.where(int(self.m.threads[k, c, S.T_PC]))

    # -- nodes

    def why(self, node: Node) -> Why:
        """Return what a node waits for."""
        kind, c, i, j = node
        if kind == "command":
            begun = (
                "has not begun its command"
                if self.m.core[c, S.COMMAND] >= 0
                else "has not released its command stream"
            )
            return Why(f"{self.place(c)} {begun}", (self.main(c),))
        if kind == "host":
            wanted = int(self.m.credit[i, c])
            text = f"the host waits for {wanted} more word{'s' * (wanted != 1)} of color {self.color(i)} of {self.place(c)}"
            return Why(text, (("sender", c, i, 0),))
        if kind == "inject":
            return self._inject(c, i, j)
        if kind == "main":
            return self._main(c)
        if kind == "thread":
            return self._thread(c, i)
        if kind == "out":
            return self._output_queue(c, i)
        if kind == "router":
            return self._router(c, i, j)
        if kind == "in":
            return self._input_queue(c, i)
        if kind == "sender":
            return self._sender(c, i)
        return self._word(c, i)

    def _inject(self, c: int, slot: int, port: int) -> Why:
        text = f"the host's words of color {self.color(slot)} do not enter {self.place(c)}"
        if port >= 0:
            return Why(text, (("router", c, slot, port),))
        q = self._queue(c, slot)
        if q < 0:
            return Why(f"{text}: no input queue is bound to the color", weight=WRONG)
        return Why(text, (("in", c, q, 0),))

    def main(self, c: int) -> Node:
        """Return the node of a core's main thread: that of its vector operation, if it runs one."""
        return ("thread", c, 0, 0) if self.m.core[c, S.MODE] == S.VECTOR else ("main", c, 0, 0)

    def _main(self, c: int) -> Why:
        core = self.m.core[c]
        mode, pc = int(core[S.MODE]), int(core[S.PC])
        if mode == S.VECTOR:
            return self._thread(c, 0)
        if mode == S.LAUNCH and core[S.LEFT] == 0:
            k = int(core[S.STATUS])
            text = f"{self.place(c)} at {self.image.where(pc)} waits for microthread {k - 1}, which runs {self._line(c, k)}"
            return Why(text, (("thread", c, k, 0),))
        if mode == S.HALTED:
            return Why(f"{self.place(c)} has halted", weight=REST)
        if mode == S.NO_PROGRAM:
            return Why(f"{self.place(c)} has no program", weight=WRONG)
        if mode not in (S.IDLE, S.ENDING):
            return Why(f"{self.place(c)} runs at {self.image.where(pc)}", weight=REST)
        return self._at_rest(c)

    def _at_rest(self, c: int) -> Why:
        core = self.m.core[c]
        active, blocked, ran = (int(core[k]) for k in (S.ACTIVE, S.BLOCKED, S.RAN))
        stuck = [t for t in self.tasks(c) if active >> t.id & 1 and blocked >> t.id & 1]
        threads = [k for k in self.live(c) if k > 0]
        freed = {int(self.m.threads[k, c, S.T_UNBLOCK]) for k in threads}
        for task in stuck:
            if task.id not in freed:
                text = f"{self.place(c)}: task '{task.name}' (id {task.id}) is activated and blocked, and nothing unblocks it"
                return Why(text, weight=BLOCKED)
        ways: list[Node] = [("thread", c, k, 0) for k in threads]
        said = [f"microthread {k - 1} of {self._line(c, k)}" for k in threads]
        for task in self.tasks(c):
            slot, q = self._source(c, task)
            if task.kind != DATA or q < 0:
                continue
            if self.m.iq_count[q, c] and blocked >> task.id & 1 and task.id not in freed:
                text = (
                    f"{self.place(c)}: task '{task.name}' is blocked, nothing unblocks it, and "
                    f"{int(self.m.iq_count[q, c])} words of color {self.color(slot)} wait for it"
                )
                return Why(text, weight=BLOCKED)
            if slot >= 0:
                ways.append(("word", c, slot, q))
                said.append(f"a word of color {self.color(slot)} for task '{task.name}'")
        never = [f"'{t.name}'" for t in self.tasks(c) if t.kind == LOCAL and not ran >> t.id & 1]
        text = f"{self.place(c)} is idle: no task is active"
        text += (
            f"; only {' or '.join(said)} could continue"
            if said
            else ", no microthread runs and no word can start a task"
        )
        if never:
            text += f"; never ran: {', '.join(never)}"
        if len(ways) == 1:
            return Why(text, tuple(ways))
        return Why(text, weight=REST, ways=tuple(ways))

    def _source(self, c: int, task: Task) -> tuple[int, int]:
        """Slot and input queue of a data task."""
        if self.image.arch == "wse3":
            return int(self.m.in_color[c, task.id]) if task.id < self.m.in_color.shape[1] else -1, task.id
        slot = self._slot(task.id)
        return slot, self._queue(c, slot)

    def _thread(self, c: int, k: int) -> Why:
        th = self.m.threads[k, c]
        name = "" if k == 0 else f" (microthread {k - 1})"
        who = f"{self.place(c)} at {self._line(c, k)}{name} waits for"
        if k and int(self.m.core[c, S.THREADS_BLOCKED]) >> (k - 1) & 1:
            return Why(
                f"{self.place(c)} at {self._line(c, k)}: microthread {k - 1} is blocked, and nothing unblocks it",
                weight=BLOCKED,
            )
        for place in (1, 2):
            form, q = self._field(c, k, place, S.P_FORM), self._field(c, k, place, S.P_QUEUE)
            if form == S.INPUT:
                found = self._no_input(c, k, place, q, who)
                if found is not None:
                    return found
            elif form == S.FIFO and self.m.fifo[c, self._field(c, k, place, S.P_ROW), 1] == 0:
                return self._fifo(c, k, self._field(c, k, place, S.P_ROW), f"{who} an element in a FIFO", 0)
        form = self._field(c, k, 0, S.P_FORM)
        if form == S.OUTPUT:
            q = self._field(c, k, 0, S.P_QUEUE)
            text = f"{who} room in output queue {q} to send word {int(th[S.T_DONE]) + 1} of color {self.color(self._field(c, k, 0, S.P_SLOT))}"
            return Why(text, (("out", c, q, 0),))
        if form == S.FIFO:
            return self._fifo(c, k, self._field(c, k, 0, S.P_ROW), f"{who} room in a FIFO", 1)
        return Why(f"{who} the issue slot", weight=BESIDE)

    def _no_input(self, c: int, k: int, place: int, q: int, who: str) -> Why | None:
        """Why an input operand has no word; None if it has one."""
        th, slot = self.m.threads[k, c], self._field(c, k, place, S.P_SLOT)
        done, rest = int(th[S.T_DONE]), int(th[S.T_REST])
        of = "" if th[S.T_ENDLESS] else f" of {done + rest}"
        slot = slot if slot >= 0 else int(self.m.in_color[c, q])
        text = f"{who} element {done + 1}{of}, a word of color {self.color(slot)} in input queue {q}"
        if self.m.iq_count[q, c]:
            meta = int(self.m.iq_meta[q, c, self.m.iq_head[q, c]])
            if meta & 63 != slot:
                return Why(f"{text}: a word of color {self.color(meta & 63)} heads that queue", weight=WRONG)
            return (
                Why(f"{text}: a control wavelet heads it", (self.main(c),))
                if meta >> 6 == S.CONTROL_WORD
                else None
            )
        bound = self._queue(c, slot)
        if bound != q:
            now = f"input queue {bound}" if bound >= 0 else "no queue"
            return Why(f"{text}: the color is bound to {now}", weight=WRONG)
        return Why(text, (("word", c, slot, q),))

    def _fifo(self, c: int, k: int, row: int, text: str, side: int) -> Why:
        """`side` 0: a FIFO that others fill, 1: that others empty."""
        places = (0,) if side == 0 else (1, 2)
        others = [
            t
            for t in self.live(c)
            if t != k
            and any(
                self._field(c, t, p, S.P_FORM) == S.FIFO and self._field(c, t, p, S.P_ROW) == row
                for p in places
            )
        ]
        if others:
            return Why(text, tuple(("thread", c, t, 0) for t in others))
        return Why(text, (self.main(c),)) if k else Why(text, weight=UNREAD)

    def _output_queue(self, c: int, q: int) -> Why:
        slot = int(self.m.oq_meta[q, c, int(self.m.oq_head[q, c])]) & 63
        text = f"output queue {q} of {self.place(c)} has {int(self.m.oq_count[q, c])} words of color {self.color(slot)}"
        if self.m.host_slot[slot]:
            return Why(f"{text}, and the host takes no more of them", weight=UNREAD)
        return Why(text, (("router", c, slot, RAMP),))

    def _router(self, c: int, slot: int, port: int) -> Why:
        m, rs = self.m, slot * self.n + c
        state, held = int(m.rstate[rs]), int(m.q_count[rs * 5 + port])
        position = state & 3
        pair = int(m.route[rs * 4 + position])
        text = (
            f"the router of {self.place(c)} holds {held} words of color {self.color(slot)} from {SIDES[port]}"
        )
        if state & S.TORN:
            return Why(f"{text}: the color is torn down there", weight=BLOCKED)
        if pair == 0 or pair >> 5 == 0:
            return Why(f"{text}: it has no route for the color", weight=STUCK)
        if not pair >> port & 1:
            others = [k for k in range(4) if int(m.route[rs * 4 + k]) >> port & 1]
            if not others:
                return Why(f"{text}: its route receives from {_sides(pair & 31)} only", weight=STUCK)
            other_way = f"position {others[0]} would, and no control wavelet has moved it there"
            return Why(
                f"{text}: its switch in position {position} does not receive from there; {other_way}",
                weight=UNREAD,
            )
        after: list[Node] = []
        for out in (q for q in range(5) if pair >> (5 + q) & 1):
            queue = self._queue(c, slot)
            if out == RAMP:
                if queue < 0:
                    return Why(
                        f"{text} for its core: no input queue there is bound to the color", weight=STUCK
                    )
                if m.iq_count[queue, c] >= m.in_depth[queue]:
                    after.append(("in", c, queue, 0))
                continue
            other = self._beside(c, out)
            if other < 0:
                if m.credit[slot, c] <= 0:
                    edge = f"{text}: its route leaves the rectangle to the {SIDES[out]}, where the host takes no more words"
                    return Why(edge, weight=STUCK)
                continue
            there = self._partner(rs, slot, out)
            e = (there * self.n + other) * 5 + (out + 2) % 4
            if m.q_count[e]:
                after.append(("router", other, there, (out + 2) % 4))
        return Why(text, tuple(after), 0 if after else BESIDE)

    def _beside(self, c: int, port: int) -> int:
        dx, dy = STEPS[port]
        x, y = c % self.image.cols + dx, c // self.image.cols + dy
        return y * self.image.cols + x if 0 <= x < self.image.cols and 0 <= y < self.image.rows else -1

    def _partner(self, rs: int, slot: int, port: int) -> int:
        """Slot on the other side of a port."""
        is_swapped = int(self.m.rstate[rs]) & (S.SWAP_X if port & 1 else S.SWAP_Y)
        return self._slot(self.color(slot) ^ 1) if is_swapped else slot

    def _input_queue(self, c: int, q: int) -> Why:
        slot = int(self.m.iq_meta[q, c, int(self.m.iq_head[q, c])]) & 63
        text = f"input queue {q} of {self.place(c)} has {int(self.m.iq_count[q, c])} words of color {self.color(slot)}"
        readers = [
            k
            for k in self.live(c)
            if any(
                self._field(c, k, p, S.P_FORM) == S.INPUT and self._field(c, k, p, S.P_QUEUE) == q
                for p in (1, 2)
            )
        ]
        if readers:
            return Why(text, tuple(("thread", c, k, 0) for k in readers))
        task = self.task_of_queue(c, q)
        if task is not None and int(self.m.core[c, S.BLOCKED]) >> task.id & 1:
            freeing = [k for k in self.live(c) if int(self.m.threads[k, c, S.T_UNBLOCK]) == task.id]
            said = f"{text}: task '{task.name}', which takes them, is blocked"
            if freeing:
                return Why(said, tuple(("thread", c, k, 0) for k in freeing))
            if self.m.core[c, S.MODE] == S.IDLE:
                return Why(f"{said}, and nothing unblocks it", weight=STUCK)
            return Why(said, (self.main(c),))
        main = self._main(c)
        if task is None and main.weight:
            return Why(
                f"{text}, and nothing reads them: no task takes them, no operation names the queue; {main.text}",
                weight=STUCK,
            )
        return Why(f"{text}; nothing reads them now", (self.main(c),))

    def _sender(self, c: int, slot: int) -> Why:
        text = f"{self.place(c)} should send color {self.color(slot)}"
        after: list[Node] = [
            ("thread", c, k, 0)
            for k in self.live(c)
            if self._field(c, k, 0, S.P_FORM) == S.OUTPUT and self._field(c, k, 0, S.P_SLOT) == slot
        ]
        for q in range(self.m.oq_count.shape[0]):
            if self.m.oq_count[q, c] and int(self.m.oq_meta[q, c, int(self.m.oq_head[q, c])]) & 63 == slot:
                after.append(("out", c, q, 0))
        if after:
            return Why(text, tuple(after))
        return Why(f"{text}, and no operation of it does so now", (self.main(c),))

    def _word(self, c: int, slot: int) -> Why:
        """Return where an awaited word should come from: up the routes to its senders, or to the gap in them."""
        found = Upstream(self, c, slot)
        name = f"color {self.color(slot)}"
        if self.m.host_slot[slot]:
            return Why(f"{name} comes from the host, which sends no more of it", weight=REST)
        gap = found.gaps[0] if found.gaps else ""
        if not found.after and found.from_host:
            text = f"no word of {name} comes to {self.place(c)}: {gap}, where no core is and the host sends nothing more"
            return Why(text, weight=WRONG)
        if not found.after:
            return Why(f"no word of {name} can come to {self.place(c)}: {gap}", weight=WRONG)
        return Why(f"{name} comes to {self.place(c)} from {found.named()}", tuple(found.after))


class Upstream:
    """The routes of a color to a core, followed backwards through the present switch positions."""

    def __init__(self, waits: WaitGraph, c: int, slot: int) -> None:
        self.waits = waits
        self.after: list[Node] = []
        self.gaps: list[str] = []
        self.from_host = False
        self._open = [(c, slot, RAMP)]
        self._seen: set[tuple[int, int]] = set()
        while self._open:
            self._visit(*self._open.pop())

    def named(self) -> str:
        """The senders in words."""
        cores = list(dict.fromkeys(node[1] for node in self.after))
        return " or ".join(self.waits.place(c) for c in cores[:3]) + (
            f" or {len(cores) - 3} more" if len(cores) > 3 else ""
        )

    def _visit(self, c: int, slot: int, out: int) -> None:
        w, m = self.waits, self.waits.m
        rs = slot * w.n + c
        state = int(m.rstate[rs])
        pair = int(m.route[rs * 4 + (state & 3)])
        name = f"color {w.color(slot)}"
        where = "to its core" if out == RAMP else f"to the {SIDES[out]}"
        if state & S.TORN:
            self.gaps.append(f"{name} is torn down at the router of {w.place(c)}")
            return
        if not any(int(m.route[rs * 4 + k]) for k in range(4)):
            self.gaps.append(f"the router of {w.place(c)} has no route for {name}; it should lead {where}")
            return
        if not pair >> (5 + out) & 1:
            others = [k for k in range(4) if int(m.route[rs * 4 + k]) >> (5 + out) & 1]
            leads = _sides(pair >> 5) if pair >> 5 else "nowhere"
            more = (
                f"; position {others[0]} of its switch would, it is in position {state & 3}" if others else ""
            )
            self.gaps.append(f"the router of {w.place(c)} leads {name} to {leads}, not {where}{more}")
            return
        if (c, slot) in self._seen:
            return
        self._seen.add((c, slot))
        for port in (p for p in range(5) if pair >> p & 1):
            if m.q_count[rs * 5 + port]:
                self.after.append(("router", c, slot, port))
            elif port == RAMP:
                if w.image.core_class[c] >= 0:
                    self.after.append(("sender", c, slot, 0))
                else:
                    self.gaps.append(f"{w.place(c)}, from which {name} should come, has no program")
            else:
                self._go_up(c, slot, port)

    def _go_up(self, c: int, slot: int, port: int) -> None:
        w = self.waits
        other, back = w._beside(c, port), (port + 2) % 4
        if other < 0:
            self.from_host = True
            self.gaps.append(
                f"the router of {w.place(c)} receives color {w.color(slot)} from the {SIDES[port]}, the edge of the rectangle"
            )
            return
        for there in dict.fromkeys((slot, w._slot(w.color(slot) ^ 1))):
            if there >= 0 and w._partner(there * w.n + other, there, back) == slot:
                self._open.append((other, there, back))


def _sides(mask: int) -> str:
    return " and ".join(SIDES[p] for p in range(5) if mask >> p & 1)


__all__ = ["BESIDE", "BLOCKED", "CONTROL", "REST", "UNREAD", "WRONG", "Node", "WaitGraph", "Why"]
