"""One register core, cycle by cycle: tasks, scalar code, microthreads, one issue slot."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from tests.fabric.vm.plain.vector import Thread, begin, finish_addresses, run_at_once, step, surveyed
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm.image import CONTROL, DATA, LOCAL
from wse_sim.fabric.vm.opcodes import DsdField, Op, Sys

IDLE, RUN, LAUNCH, VECTOR, ENDING = "idle", "run", "launch", "vector", "ending"
BUSY, REST, INPUT, OUTPUT = "busy", "rest", "input", "output"
AT_ONCE = {
    Sys.RANDOM16,
    Sys.SEED_PRNG,
    Sys.X_COORD,
    Sys.Y_COORD,
    Sys.DSR_SAVE,
}  # the clock does not matter to them


@dataclasses.dataclass
class Word:
    """A wavelet in a queue of the core: its color, whether it is a control wavelet, when it came or was written."""

    bits: int
    color: int
    is_control: bool = False
    time: int = 0


class Core:
    """A core of a class; `machine` has code, prices, settings."""

    def __init__(self, machine: Any, index: int, number: int) -> None:
        image = machine.image
        self.m, self.index, self.cls = machine, index, image.classes[number]
        self.memory = [0] * machine.words
        for address, words in self.cls.memory:
            self.memory[address : address + len(words)] = [int(w) for w in words]
        self.registers = [0] * 256
        self.window = self.pc = self.left = self.held = 0
        self.calls: list[tuple[int, int]] = []
        self.mode, self.at_once = IDLE, False
        self.tasks = {task.id: task for task in self.cls.tasks}
        self.active, self.blocked = set(self.cls.active), set(self.cls.blocked)
        self.blocked_threads: set[int] = set()
        self.high = {task.id for task in self.cls.tasks if task.high_priority}
        self.last_task, self.had_turn = 0, set[int]()
        self.command: tuple[int, tuple[int, ...]] | None = None
        self.is_armed = False
        self.threads: dict[int, Thread] = {}  # 0: the main thread's operation, 1 + k: microthread k
        self.main_priority = int(self.cls.main_priority)
        self.dsr: dict[int, int] = {}
        self.load_of: dict[int, int] = {}
        self.written: tuple[int | None, int] = (
            None,
            0,
        )  # the one element of the last vector operation, when others could issue
        self.random, self.clock_on, self.clock_base, self.clock_held = 0xDEADBEEF, False, 0, 0
        self.inputs: dict[int, deque[Word]] = {q: deque() for q in range(8)}
        self.outputs: list[deque[Word]] = [deque() for _ in machine.output_depth]
        self.queue_turn = 0
        reads = self.cls.input_colors if image.arch == "wse3" else [(q, c) for c, q in self.cls.reads]
        self.queue_of = {color: queue for queue, color in reads}  # color -> input queue
        self.output_color = dict(self.cls.output_colors)
        self.did = REST
        self.counted = dict.fromkeys((BUSY, INPUT, OUTPUT, REST, "sent", "received", "opcodes"), 0)

    # ---- registers, memory, queues

    def get(self, k: int) -> int:
        return self.registers[self.window + k]

    def put(self, k: int, value: int) -> None:
        self.registers[self.window + k] = value

    def load(self, address: int, words: int) -> int:
        assert 0 <= address <= len(self.memory) - words
        return sum(self.memory[address + i] << (16 * i) for i in range(words))

    def store(self, address: int, words: int, value: int) -> None:
        assert 0 <= address <= len(self.memory) - words
        for i in range(words):
            self.memory[address + i] = value >> (16 * i) & 0xFFFF

    def visible(self, queue: int, t: int) -> list[Word]:
        """Return the words that came before this cycle."""
        return [word for word in self.inputs.get(queue, ()) if word.time < t]

    def take(self, queue: int) -> Word:
        self.counted["received"] += 1
        return self.inputs[queue].popleft()

    # ---- tasks

    def pick(self, t: int) -> bool:
        """Give an idle main thread its next task: a command, then activated tasks in turn, then tasks that a word starts."""
        if self.command is not None:
            entry, arguments = self.command
            self.command = None
            self.start(64, entry, 0)
            for k, value in enumerate(arguments):
                self.put(k, value)
            return True
        controls = self.control_heads(t)
        for is_high in (True, False):
            allowed = {k for k in self.tasks if (k in self.high) == is_high} - self.blocked
            ready = sorted(self.active & allowed)
            chosen = next((k for k in ready if k > self.last_task), ready[0] if ready else None)
            if chosen is None or chosen in self.had_turn:  # words have their turn
                self.had_turn -= allowed
                if self.start_by_word(allowed, controls, t):
                    return True
            if chosen is not None:
                self.active.remove(chosen)
                self.had_turn.add(chosen)
                self.start(chosen, self.tasks[chosen].entry, 0)
                return True
        return False

    def control_heads(self, t: int) -> dict[int, int]:
        """Task of each queue that a control wavelet with an open task heads; words that name no task are dropped before a data task."""
        found = {}
        for queue in sorted(self.inputs):
            while (head := next(iter(self.visible(queue, t)), None)) and head.is_control:
                task, channel = head.bits >> 16 & 63, queue if self.m.is_wse3 else head.color
                if channel in self.blocked:
                    break
                if task in self.tasks and self.tasks[task].kind == CONTROL:
                    if task not in self.blocked:
                        found[queue] = task
                    break
                if channel not in self.tasks or self.tasks[channel].kind != DATA:
                    break
                self.take(queue)
        return found

    def start_by_word(self, allowed: set[int], controls: dict[int, int], t: int) -> bool:
        for number in sorted(k for k in allowed if self.tasks[k].kind != LOCAL):
            task = self.tasks[number]
            for queue in (q for q, k in controls.items() if k == number and task.kind == CONTROL):
                self.start(number, task.entry, self.take(queue).bits)
                return True
            if task.kind == DATA:
                queue = number if self.m.is_wse3 else self.queue_of.get(number, -1)
                head = next(iter(self.visible(queue, t)), None)
                if head and not head.is_control and (self.m.is_wse3 or head.color == number):
                    self.start(number, task.entry, self.take(queue).bits)
                    return True
        return False

    def start(self, number: int, entry: int, word: int) -> None:
        self.last_task, self.pc, self.window, self.calls = number, entry, 0, []
        self.mode, self.left = RUN, self.m.costs["task_pick"]
        self.put(0, word)

    # ---- the main thread

    def run_main(self, t: int) -> None:
        """Run what takes no slot, up to where cycles are counted, something is waited for, or a vector operation is at work."""
        going = self.mode == RUN and self.left == 0
        while True:
            if going:
                going = self.stretch(t)
            if self.mode == LAUNCH and (self.at_once or self.left == 0):
                going = self.launch(t)
                self.at_once = False
            if not going:
                return

    def launch(self, t: int) -> bool:
        """Begin the vector operation at the pc; True if the main thread goes on at once."""
        _, target, first, row = self.m.code[self.pc]
        number, thread, is_local = begin(self, row, first)
        if thread is None:
            return False
        if is_local and number == 0:
            cycles = run_at_once(self, thread)
            self.left += cycles
            self.held += cycles
            self.finish(thread, t + self.left)
            return True
        self.threads[number] = thread
        if number == 0:
            self.mode = VECTOR
            return False
        self.mode, self.pc = RUN, self.pc + 1
        if target >= 0:
            self.put(target, 1)
        return True

    def finish(self, thread: Thread, free: int) -> None:
        """An operation is through; from cycle `free` on another one can issue."""
        if thread.activate >= 0:
            self.active.add(thread.activate)
        self.blocked.discard(thread.unblock)
        finish_addresses(self, thread)
        if thread.number == 0:
            self.mode, self.written = RUN, (thread.only_result, free)
            if (target := self.m.code[self.pc][1]) >= 0:
                self.put(target, 1)
            self.pc += 1
        self.threads.pop(thread.number, None)

    def stretch(self, t: int) -> bool:
        """Scalar code until something happens that others could notice in another cycle; True if it goes on in this one."""
        while True:
            op, a, b, c = self.m.code[self.pc]
            price, late = self.m.price[self.pc], self.m.late[self.pc]
            if op == Op.VEC:
                loads, shapes, reads, is_local = surveyed(self, c, b)
                last, free = self.written
                start = (
                    late
                    + self.m.costs["dsr_load"] * loads
                    + (self.m.costs["xdsr_load"] + 3 * self.m.costs["dsr_shape"]) * shapes
                )
                if last in reads:  # it waits until the element is written
                    start += max(self.m.costs["vector_dependent"] - (t + self.left - free), 0)
                self.left = max(self.left + start, 0)
                self.mode, self.at_once = LAUNCH, is_local
                return False
            if op == Op.SYS and self.left and c not in AT_ONCE:
                return False
            if op == Op.BLOCK and self.left:
                return False
            self.counted["opcodes"] += op not in (Op.SYS,)
            self.left += late if op in (Op.SYS, Op.BLOCK) else price
            self.pc += 1
            if op == Op.END or (op == Op.RET and not self.calls):
                self.mode = ENDING if self.left else IDLE
                return False
            if op == Op.SYS:
                self.left -= late
                result = self.system(Sys(c), b, t)
                self.left += late
                if a >= 0:
                    self.put(a, result)
            else:
                self.scalar(op, a, b, c)

    def scalar(self, op: int, a: int, b: int, c: int) -> None:
        operations = self.m.operations
        if op in operations:
            self.put(a, operations[op](self.get(b), self.get(c)))
        elif op in M.IMMEDIATE:
            self.put(a, M.IMMEDIATE[op](self.get(b), c))
        elif op in M.JUMPS or op in M.JUMPS_IMMEDIATE:
            test, y = (M.JUMPS[op], self.get(b)) if op in M.JUMPS else (M.JUMPS_IMMEDIATE[op], b)
            if test(self.get(a), y):
                self.left += self.m.late[self.pc - 1]
                self.pc = c
        elif op in M.LOADS:
            words, is_signed, scale = M.LOADS[Op(op)]
            value = self.load(self.get(b) + (scale * self.get(c) if scale else c), words)
            self.put(a, M.signed(value, 16 * words) if is_signed else value)
        elif op in M.STORES:
            words, scale = M.STORES[Op(op)]
            self.store(self.get(b) + (scale * self.get(c) if scale else c), words, self.get(a))
        elif op in (Op.LDI, Op.LDK, Op.MOV):
            self.put(
                a, c if op == Op.LDI else M.signed(self.cls.constants[c], 64) if op == Op.LDK else self.get(b)
            )
        elif op == Op.FMA:
            self.put(a, M.multiply_add(self.get(a), self.get(b), self.get(c)))
        elif op == Op.JMP:
            self.pc = c
        elif op in (Op.CALL, Op.CALLR):
            to = c if op == Op.CALL else self.get(b)
            self.calls.append((self.pc, self.window))
            self.pc, self.window = to, self.window + a
        elif op == Op.RET:
            self.pc, self.window = self.calls.pop()
        elif op in (Op.ACT, Op.BLOCK, Op.UNBLOCK):
            blocked = self.blocked_threads if c == O.Space.MICROTHREAD and op != Op.ACT else self.blocked
            number = self.get(b) & 63
            {Op.ACT: self.active.add, Op.BLOCK: blocked.add, Op.UNBLOCK: blocked.discard}[Op(op)](number)
        elif op in (Op.DSD_BASE, Op.DSD_ADD, Op.DSD_LEN, Op.DSD_STRIDE):
            low = {Op.DSD_BASE: 4, Op.DSD_ADD: 4, Op.DSD_LEN: 20, Op.DSD_STRIDE: 36}[Op(op)]
            old, new = self.get(b), self.get(c)
            self.put(a, replaced(old, low, new + (old >> 4 if op == Op.DSD_ADD else 0)))
        elif op == Op.DSD_GET:
            self.put(a, self.m.field(self.get(b), DsdField(c)))
        elif op in (Op.DSD_ADDR16, Op.DSD_ADDR32):
            self.put(a, self.m.element_address(self.get(b), self.get(c), 1 if op == Op.DSD_ADDR16 else 2))
        elif op == Op.DSR_LOAD:
            number = int(self.m.image.dsr_loads[c][O.L_FILE]) * 64 + int(self.m.image.dsr_loads[c][O.L_ID])
            self.dsr[number], self.load_of[number] = self.get(b), c
        elif op == Op.DSR_BASE:
            self.dsr[c] = replaced(self.dsr.get(c, 0), 4, self.get(b))
        elif op == Op.DSR_GET:
            self.put(a, self.dsr.get(c, 0))
        else:
            assert op == Op.NOP, Op(op).name

    def system(self, fn: Sys, b: int, t: int) -> int:
        """Return a function of the machine; its result."""
        x = self.get(b)
        if fn == Sys.TSC_VALUE:
            return (self.clock_held + (t - self.clock_base if self.clock_on else 0)) & ((1 << 48) - 1)
        if fn == Sys.TSC_ENABLE and not self.clock_on:
            self.clock_on, self.clock_base = True, t
        elif fn == Sys.TSC_DISABLE:
            self.clock_held, self.clock_on = self.system(Sys.TSC_VALUE, b, t), False
        elif fn == Sys.RANDOM16:
            for _ in range(128):
                self.random = (self.random << 1 | (self.random >> 22 ^ self.random >> 17) & 1) & 0xFFFFFFFF
            return self.random & 0xFFFF
        elif fn in (Sys.X_COORD, Sys.Y_COORD):
            return divmod(self.index, self.m.image.cols)[fn == Sys.X_COORD]
        elif fn == Sys.UNBLOCK_CMD_STREAM:
            self.is_armed = False
        elif fn == Sys.TASK_PRIORITY:
            (self.high.add if self.get(b + 1) else self.high.discard)(x)
        elif fn == Sys.MAIN_PRIORITY:
            self.main_priority = x
        elif fn == Sys.IQ_EMPTY:
            return int(not self.visible(x, t))
        elif fn == Sys.OQ_EMPTY:
            return int(not self.outputs[x])
        elif fn == Sys.IS_ACTIVE:
            return int(1 + x in self.threads)
        elif fn == Sys.DSR_SAVE:
            self.dsr[x] = self.get(b + 1)
        else:
            assert fn == Sys.TSC_ENABLE, fn.name
        return 0

    # ---- one cycle

    def cycle(self, t: int) -> str:
        """One cycle; what the core did, or what the first in the order of the slot waits for."""
        if self.mode == IDLE:
            self.pick(t)
        if self.mode in (RUN, LAUNCH):
            self.run_main(t)
        is_scalar = self.left > 0 and self.held == 0  # leaves the slot to the microthreads
        if is_scalar:
            self.count_down()
        order = [(self.rank(k), k) for k in self.threads if k and k - 1 not in self.blocked_threads]
        if not is_scalar:
            order.append(({1: -1, 2: 1, 3: 7}.get(self.main_priority, 4), 0))
        why = REST
        for _, number in sorted(order):
            if number == 0 and self.left:
                self.held -= 1
                self.count_down()
                return BUSY
            did = OUTPUT if number == 0 and self.mode == LAUNCH else REST
            if number or self.mode == VECTOR:
                thread = self.threads[number]
                did = step(self, thread, t)
                if thread.is_done:
                    self.finish(thread, t + 1)
                    return BUSY
            if did == BUSY:
                return BUSY
            why = did if why == REST else why
        return BUSY if is_scalar else why

    def rank(self, number: int) -> int:
        return {1: 0, 2: 2}.get(self.threads[number].priority, 6)

    def count_down(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.held = 0
            if self.mode == ENDING:
                self.mode = IDLE


def replaced(dsd: int, low: int, value: int) -> int:
    """Return a DSD value with another 16-bit field."""
    return M.signed(dsd & ~(0xFFFF << low) | (value & 0xFFFF) << low, 64)
