"""A program on the fabric that the host starts, watches and feeds: run until a cycle or a condition, look, continue.

Coordinates: x = column, y = row of the program rectangle; memory addresses in 16-bit words; times in cycles.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.threads import cut, run_bands
from wse_sim.fabric.vm import loop as L
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.bands import Bands, one_band
from wse_sim.fabric.vm.build import changes_routes, make_machine
from wse_sim.fabric.vm.findings import Finding, findings, unread_words
from wse_sim.fabric.vm.host_words import ReceivedWords, SentWords
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.proof import StandstillProof, prove
from wse_sim.fabric.vm.rectangle import RectangleOfCores
from wse_sim.fabric.vm.report import (
    Fault,
    WaitingCore,
    format_print,
    lines_profiled,
    what_classes_do,
    who_waits,
    why_fault,
)
from wse_sim.hardware.wafer import Wafer

Array = npt.NDArray[Any]
Look = Callable[["Session"], None]
Until = Literal["cycle", "commands", "drained", "injected", "idle"]
_ASKED = {"commands": L.COMMANDS, "drained": L.DRAINED, "injected": L.INJECTED}
DEFAULT_LIMIT = 1 << 40
STILL = 64
"""Additional reason for the end of a run: nothing changes."""
FIRST_PART_CYCLES, PART_S = 1 << 18, 0.25
NORTH, SOUTH = 0, 2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Why :meth:`Session.advance` returned, and at which cycle.

    ``reason``: "cycle", "asked" (all conditions are met), "idle" (nothing can happen, and no condition was
    requested), "waits" (nothing can happen, and a condition is unmet), "still" (cores run, but for the
    requested time no word moved and no memory changed), "fault". ``quiet``: for "idle", the cycle from which
    on nothing could happen; time may have passed since.
    """

    reason: str
    cycle: int
    fault: Fault | None = None
    quiet: int = 0


@dataclasses.dataclass(frozen=True)
class PrintedText:
    """A piece of text that a core wrote; ``traced``: kept for the host, with its raw values."""

    cycle: int
    x: int
    y: int
    text: str
    traced: bool = False
    row: int = -1
    values: tuple[int, ...] = ()


class Session(RectangleOfCores):
    """One program on one fabric; see the module's docstring.

    ``executor``: "fast" visits what can act, "oracle" everything in every cycle; both agree.  ``strict``: two inputs of one color at once are
    a fault.  ``costs`` replaces single prices of the wafer.  ``threads``: at most that many, each steps a band of its own rows; results do not
    depend on it.  ``schedule``: keep which task each core began when, for :meth:`picks`.  ``bounds``: a vector operation that
    leaves the variable in which it begins is a fault.  ``in_turns``: the bands share one thread, as they always do without machine code.
    ``sanitize``: look at every access and word, for :meth:`findings`; results and cycles stay as they are.

    Raises
    ------
    ProgramError
        If the program is not on the wafer, or ``threads`` is less than 1.
    """

    def __init__(
        self,
        image: Image,
        wafer: Wafer,
        *,
        executor: Literal["fast", "oracle"] = "fast",
        strict: bool = True,
        profile: bool = False,
        costs: Mapping[str, int] | None = None,
        threads: int = 1,
        schedule: bool = False,
        bounds: bool = False,
        in_turns: bool = False,
        sanitize: bool = False,
        **overrides: object,
    ) -> None:
        self.image = image
        sums = (
            round(1000 / wafer.csl_add_fp32_memory_per_cycle),
            *FabricConfig.from_wafer(wafer).add_memory_milli[1:],
        )
        own = {"add_memory_milli": sums, "fp32_bank_period_words": wafer.csl_bank_period_words}
        self.config = FabricConfig.from_wafer(wafer, **{**own, **overrides})
        if image.rows * image.cols < 1 or image.rows > wafer.rows or image.cols > wafer.cols:
            raise ProgramError(
                f"a rectangle of {image.cols} x {image.rows} cores is not on the {wafer.cols} x {wafer.rows} of {wafer.name}"
            )
        self.machine = make_machine(
            image,
            self.config,
            wafer.output_queue_wavelets,
            {**wafer.scalar_costs(), **(costs or {})},
            strict=strict,
            profile=profile,
            watch=sanitize,
        )
        if threads < 1:
            raise ProgramError(
                f"threads = {threads} is less than 1; use 1 or the number of free processor cores"
            )
        self._everything = executor == "oracle"
        self.machine.sets[S.TRY_ALL] = self._everything
        self.machine.sets[S.SCHEDULE] = schedule
        self.machine.sets[S.BOUNDS] = bounds or sanitize
        # a router looks at the turns of its neighbour's route, which this program changes while it runs
        is_fixed = not self.config.turn_cycles or not changes_routes(image)
        self._threads = threads if is_fixed and not self._everything and not sanitize else 1
        self.sanitizes = sanitize
        self._in_turns = in_turns
        self._alone = one_band(self.machine)
        self._cuts: dict[tuple[int, ...], Bands] = {}
        self._profiles = profile
        self._sent, self._received = SentWords(image.n_cores), ReceivedWords()
        self._printed: list[PrintedText] = []
        self._picks, self.warnings = list[Array](), list[str]()
        self.fault: Fault | None = None
        self.quiet_cycles = 0  # passed for the host alone, while nothing could happen

    # -- time

    @property
    def cycle(self) -> int:
        """The present cycle."""
        return int(self.machine.size[S.CLOCK])

    def advance(
        self,
        until: Until | Iterable[Until] = "idle",
        *,
        cycles: int | None = None,
        still_cycles: int = 0,
        look: Look | None = None,
    ) -> Outcome:
        """Run until all conditions of `until` hold, nothing can happen, or `cycles` more have passed.

        "commands": every armed core has released its command stream; "drained": all words that were expected have come; "injected": all
        words of the host are on the fabric; "idle" and "cycle": nothing but the limit.  With `still_cycles` it also ends where no word moved
        and no memory changed from one look to the next, that many cycles apart; the results do not depend on it.  `look` is called from
        time to time, every second at least, at cycles that depend on the speed of the host.
        """
        m = self.machine
        if self.fault is not None:
            return Outcome("fault", self.cycle, self.fault)
        names = [until] if isinstance(until, str) else list(until)
        asked = sum({_ASKED[name] for name in names if name in _ASKED})
        last = self.cycle + cycles if cycles is not None else DEFAULT_LIMIT
        injections = self._sent.rows
        if len(injections):
            self.machine = m = m._replace(host_words=self._sent.words)
        else:
            injections = np.zeros((1, S.INJECTION_FIELDS), np.int64)
        why = self._run_watched(injections, last, asked, still_cycles, look)
        if why == STILL:
            return Outcome("still", self.cycle)
        if not len(self._sent.heads):
            self._sent.clear()
        if why == L.FAULTED:
            self.fault = why_fault(m, self.image)
            return Outcome("fault", self.cycle, self.fault)
        if why == L.QUIET:
            quiet = self.cycle
            if cycles is not None and not asked:  # nothing happens, but time passes for whoever comes next
                m.size[S.CLOCK] = max(last, self.cycle)
                self.quiet_cycles += self.cycle - quiet
            return Outcome("waits" if asked else "idle", self.cycle, quiet=quiet)
        return Outcome("asked" if why == L.ASKED else "cycle", self.cycle)

    def _run_watched(
        self,
        injections: Array,
        last: int,
        asked: int,
        still_cycles: int,
        look: Look | None,
    ) -> int:
        """Run in parts of less than a second, so that interrupts are handled; return why it ended, STILL if
        nothing changes."""
        starts = self._starts()
        bands = self._bands(starts) if starts else None
        seen, look_at = 0, self.cycle + still_cycles
        part = FIRST_PART_CYCLES
        while True:
            began_s, end = time.perf_counter(), min(last, self.cycle + part)
            if still_cycles:
                end = min(end, look_at)
            if bands is not None:
                why = self._run_bands(bands, injections, end, asked)
            else:
                why = self._run_alone(injections, end, asked)
            if why != L.AT_CYCLE or self.cycle >= last:
                return why
            if look is not None:
                look(self)
            part = part * 2 if time.perf_counter() - began_s < PART_S else max(FIRST_PART_CYCLES, part // 2)
            if still_cycles and self.cycle >= look_at:
                found = self._progress()
                if found == seen:
                    return STILL
                seen, look_at = found, self.cycle + still_cycles

    def _progress(self) -> int:
        """A number that differs if a word moved, a memory changed, or a command was released."""
        m = self.machine
        counts = [
            m.core[:, S.SENT].sum(),
            m.core[:, S.RECEIVED].sum(),
            m.links.sum(),
            m.iq_count.sum(),
            m.q_count.sum(),
        ]
        counts += [m.size[S.PENDING_COMMANDS], m.size[S.OUTSTANDING], len(self._printed)]
        return 1 + zlib.crc32(np.array(counts, np.int64).tobytes(), zlib.crc32(m.memory.data))

    def _run_alone(self, injections: Array, last: int, asked: int) -> int:
        """All rows in this thread; returns why it ended."""
        m, heads = self.machine, np.zeros(max(1, len(injections)), np.int64)
        heads[: len(self._sent.heads)] = self._sent.heads
        m.size[S.N_INJECTING], m.size[S.NEXT_WORD] = len(self._sent.heads), 0
        why = L.FLUSH
        while why == L.FLUSH:
            why = int(L.run(m, self._alone, injections, heads, self._everything, last, asked))
            self._flush([m])
        self._sent.heads = heads[: m.size[S.N_INJECTING]]
        return why

    def _starts(self) -> list[int]:
        """First rows of all bands but the first; a queue at an edge that the host fills as well stays within one band."""
        rows, cols = self.image.rows, self.image.cols
        n = min(self._threads, rows)
        if n == 1:
            return []
        programs = (np.asarray(self.image.core_class).reshape(rows, cols) >= 0).sum(axis=1)
        sent = self._sent.rows
        sent = sent[(sent[:, S.I_PORT] == NORTH) | (sent[:, S.I_PORT] == SOUTH)]
        shared = set((sent[:, S.I_CORE] // cols + (sent[:, S.I_PORT] == SOUTH)).tolist())
        return [start for start in cut(1 + 8 * programs, n) if start not in shared]

    def _bands(self, starts: list[int]) -> Bands:
        key = tuple(starts)
        if key not in self._cuts:
            self._cuts = {key: Bands(self.machine, starts, in_turns=self._in_turns)}
        return self._cuts[key]

    def _run_bands(self, bands: Bands, injections: Array, last: int, asked: int) -> int:
        """One thread per band; returns why they ended."""
        m = self.machine
        bands.deal(m)
        heads = [np.zeros(max(1, len(injections)), np.int64) for _ in bands.machines]
        open_heads = self._sent.heads
        band_of = bands.band_of(injections[open_heads, S.I_CORE])
        for i, part in enumerate(bands.machines):
            own = open_heads[band_of == i]
            heads[i][: len(own)] = own
            part.size[S.N_INJECTING], part.size[S.NEXT_WORD] = len(own), 0
        why = [L.FLUSH] * len(heads)

        def run(i: int) -> bool:
            why[i] = int(L.run(bands.machines[i], bands.bands[i], injections, heads[i], False, last, asked))
            return why[i] == L.WAITS

        while why[0] == L.FLUSH:
            run_bands(
                [functools.partial(run, i) for i in range(len(heads))], bands.stop, in_turns=bands.in_turns
            )
            self._flush(bands.machines)
        bands.gather(m)
        left = [own[: part.size[S.N_INJECTING]] for own, part in zip(heads, bands.machines, strict=True)]
        self._sent.heads = np.concatenate(left)
        return why[0]

    # -- commands

    def launch(
        self,
        x: int,
        y: int,
        w: int,
        h: int,
        name_or_entry: str | int,
        args: Iterable[int] = (),
        *,
        arm: bool = True,
        row_cycles: int = 0,
    ) -> None:
        """Call a function on every core of a region; with `arm` condition "commands" waits for their ``unblock``.

        `row_cycles`: what the words of the command need from a row to the next (``Wafer.launch_row_cycles``); row y
        begins y times as many cycles later.

        Raises
        ------
        ProgramError
            If a core has no such function, or still has a command that it did not begin.
        """
        m, values = self.machine, [int(a) & 0xFFFFFFFF for a in args]
        if len(values) > m.arguments.shape[1]:
            raise ProgramError(
                f"a command has {len(values)} words of arguments; at most {m.arguments.shape[1]} fit"
            )
        if self.cycle == 0 and any(cls.start >= 0 for cls in self.image.classes):
            self.advance("cycle", cycles=1)  # what a program asks of its registers before everything else
        cores = self.region(x, y, w, h)
        entries = self._entries(name_or_entry)
        table = np.array([-1, *(entries.get(k, -1) for k in range(len(self.image.classes)))], np.int64)
        entry = table[np.asarray(self.image.core_class, np.int64)[cores] + 1]
        self._refuse(cores[entry < 0], f"has no function '{name_or_entry}'; export it in its program")
        self._refuse(
            cores[m.core[cores, S.COMMAND] >= 0], "has not begun its last command; advance before the next"
        )
        m.core[cores, S.COMMAND], m.core[cores, S.COMMAND_COUNT] = entry, len(values)
        m.core[cores, S.COMMAND_AT] = self.cycle + row_cycles * (cores // self.image.cols)
        m.arguments[cores, : len(values)] = values
        if arm:
            m.size[S.PENDING_COMMANDS] += int(np.sum(m.core[cores, S.ARMED] == 0))
            m.core[cores, S.ARMED] = 1
        self._wake(cores[m.core[cores, S.COMMAND_AT] <= self.cycle])
        for first in cores[::w][m.core[cores[::w], S.COMMAND_AT] > self.cycle]:
            self._sent.add(
                np.array([first]), -1, S.WAKE_PORT, np.zeros((1, 1), np.uint32),
                begin=int(m.core[first, S.COMMAND_AT]), period_milli=1000, flag=w,
            )  # fmt: skip

    def _refuse(self, cores: Array, why: str) -> None:
        if len(cores):
            y, x = divmod(int(cores[0]), self.image.cols)
            raise ProgramError(f"core ({x}, {y}) {why}")

    def _entries(self, name_or_entry: str | int) -> dict[int, int]:
        if isinstance(name_or_entry, int):
            return dict.fromkeys(range(len(self.image.classes)), name_or_entry)
        found = {}
        for k, cls in enumerate(self.image.classes):
            for symbol in cls.symbols:
                if symbol.kind == "function" and symbol.name == name_or_entry:
                    found[k] = symbol.address
        return found

    def _wake(self, cores: Array) -> None:
        """Sleeping cores take the present cycle."""
        m = self.machine
        parity = int(m.size[S.PARITY])
        fresh = cores[m.listed[cores] & ((1 << parity) | 4) == 0]
        n = int(m.size[S.N_READY])
        m.ready[parity, n : n + len(fresh)] = fresh
        m.listed[fresh] |= np.uint8(1 << parity)
        m.size[S.N_READY] = n + len(fresh)

    # -- words

    def inject(
        self,
        x: int,
        y: int,
        color: int,
        words: npt.ArrayLike,
        *,
        control: bool = False,
        start_cycle: int | None = None,
        period_milli: int = 1000,
        port: int | None = None,
    ) -> None:
        """Send words to the core itself (as if its router handed them over), or with `port` (N, E, S, W, RAMP = 0..4) into its router.

        One word every `period_milli` / 1000 cycles at most, from `start_cycle` (now) on, in the order of the calls.
        """
        begin = max(self.cycle, self.cycle if start_cycle is None else start_cycle)
        self._sent.add(
            np.array([self.core(x, y)]), self._slot(color), -1 if port is None else port, np.asarray(words, np.uint32).reshape(1, -1),
            begin=begin, period_milli=period_milli, flag=S.CONTROL_WORD if control else S.DATA_WORD,
        )  # fmt: skip

    def inject_region(
        self, x: int, y: int, w: int, h: int, color: int, words: npt.ArrayLike, *, period_milli: int = 1000
    ) -> None:
        """Send words (h, w, n) to the cores of a region from now on, one to each every `period_milli` / 1000 cycles."""
        cores = self.region(x, y, w, h)
        data = np.asarray(words, np.uint32).reshape(len(cores), -1)
        self._sent.add(
            cores, self._slot(color), -1, data, begin=self.cycle, period_milli=period_milli, flag=S.DATA_WORD
        )

    def _slot(self, color: int) -> int:
        slot = int(self.machine.slot_of[color]) if 0 <= color < 24 else -1
        if slot < 0:
            raise ProgramError(
                f"color {color} is used by no core of the program; route it or bind a queue to it"
            )
        return slot

    def expect(self, x: int, y: int, color: int, n: int, *, w: int = 1, h: int = 1) -> None:
        """The host takes `n` more words of this color from this core, or from each of w x h cores; further words stay in their queues."""
        cores = self.region(x, y, w, h)
        self.machine.credit[self._slot(color), cores] += n
        self.machine.size[S.OUTSTANDING] += n * len(cores)

    def drain(self, x: int, y: int, color: int) -> Array:
        """Words (uint32) that have come from this core on this color since the last call."""
        return self._received.take(self._slot(color), np.array([self.core(x, y)]))[0]

    def drain_region(self, x: int, y: int, w: int, h: int, color: int, n: int) -> Array:
        """Return the first `n` words (h, w, n), uint32, from the cores of a region; they must have been
        expected and have arrived."""
        return self._received.take(self._slot(color), self.region(x, y, w, h), n).reshape(h, w, n)

    def _flush(self, machines: list[S.Machine]) -> None:
        """Collect the words for the host and the log entries from the bands."""
        rows = _taken(machines, "drained", S.N_DRAIN)
        if len(rows):
            self._received.put(rows)
        rows = _taken(machines, "log", S.N_LOG)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        is_pick = rows[:, 2] == S.PICKED
        if is_pick.any():
            self._picks.append(rows[is_pick][:, [0, 1, 3, 4]])
        for row in rows[~is_pick]:
            self._record(row)

    def _record(self, row: Array) -> None:
        y, x = divmod(int(row[1]), self.image.cols)
        if row[2] == S.DROPPED_CONTROL:
            self.warnings.append(
                f"core ({x}, {y}) dropped a control wavelet at cycle {row[0]}: no task has its id {row[3]}"
            )
            return
        values = tuple(int(v) for v in row[4:])
        text = format_print(self.image, int(row[3]), values)
        self._printed.append(
            PrintedText(int(row[0]), x, y, text, bool(row[2] == S.TRACED), int(row[3]), values)
        )

    def prints(self) -> list[PrintedText]:
        """Return the text that cores printed since the last call, by cycle and core."""
        found, self._printed = self._printed, []
        return found

    def picks(self) -> Array:
        """Tasks that cores began since the last call, in the order of time: rows (cycle, core, task, word in register 0).

        Tasks 0..63; 64: a command of the host, 65: the handler of an empty queue.  Needs ``schedule=True``.
        """
        found, self._picks = self._picks, []
        return np.concatenate(found) if found else np.zeros((0, 4), np.int64)

    # -- looking on

    def status(self) -> list[WaitingCore]:
        """Who waits for what: main threads, microthreads, output queues and router queues that cannot continue; commands not released."""
        return who_waits(self.machine, self.image)

    def proof(self) -> StandstillProof:
        """Return why nothing can happen: the causes of what the host waits for, the strongest first."""
        sending = [
            (int(row[S.I_CORE]), int(row[S.I_SLOT]), int(row[S.I_PORT]))
            for row in self._sent.rows[self._sent.heads]
        ]
        return prove(self.machine, self.image, sending)

    def findings(self, *, at_end: bool = False) -> list[Finding]:
        """Return the sanitizer's findings so far, by cycle; ``at_end``: also words that nothing read. Needs
        ``sanitize=True``."""
        if not self.sanitizes:
            raise ProgramError("this session checks no access; start it with sanitize=True")
        rest = unread_words(self.machine, self.image) if at_end else []
        return findings(self.machine, self.image) + rest

    def doing(self) -> list[str]:
        """Return what the cores of every class are doing: how many, in which task, at which line; idle ones last."""
        return what_classes_do(self.machine, self.image)

    def counters(self) -> dict[str, Array]:
        """Per core (rows, cols): cycles busy, waiting for input, for output; opcodes; words sent and received; (rows, cols, 5) words per link."""
        core, now = self.machine.core, self.cycle
        shape = (self.image.rows, self.image.cols)
        since = np.maximum(0, now - core[:, S.SINCE])
        state = core[:, S.STATE]
        found = {
            "busy": core[:, S.BUSY_CYCLES] + since * (state == S.BUSY),
            "stalled_in": core[:, S.INPUT_CYCLES] + since * (state == S.WAIT_INPUT),
            "stalled_out": core[:, S.OUTPUT_CYCLES] + since * (state > S.WAIT_INPUT),
            "opcodes": core[:, S.OPCODES], "sent": core[:, S.SENT], "received": core[:, S.RECEIVED],
        }  # fmt: skip
        result: dict[str, Array] = {
            name: np.asarray(values).reshape(shape).copy() for name, values in found.items()
        }
        result["links"] = self.machine.links.reshape(*shape, 5).copy()
        result["blocked"] = self.machine.blocked.reshape(*shape, 5).copy()
        return result

    def profile(self) -> list[dict[str, Any]]:
        """Cycles and executions of every source line of every class, most cycles first (needs ``profile=True``)."""
        if not self._profiles:
            raise ProgramError("this session counts no source lines; start it with profile=True")
        return lines_profiled(self.machine, self.image)

    def nbytes_per_core(self) -> float:
        """Bytes of state per core that the session has allocated (the operating system backs only touched pages)."""
        return sum(a.nbytes for a in self.machine if isinstance(a, np.ndarray)) / self.image.n_cores


def _taken(machines: list[S.Machine], name: str, length: int) -> Array:
    """Rows of a log of all bands, which are empty afterwards."""
    rows = np.concatenate([getattr(m, name)[: m.size[length]] for m in machines])
    for m in machines:
        m.size[length] = 0
    return rows
