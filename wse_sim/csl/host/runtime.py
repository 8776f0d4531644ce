"""SdkRuntime: runs a compiled program on the simulated fabric under the control of a host script.

Commands form one stream and run in order. Simulated time passes only while the host waits. A command starts
when every core has released its command stream (``unblock_cmd_stream``) after the launches before it. A copy
itself needs no release by the cores; it takes, per channel:

    T_in = words / 0.868 + 500 cycles      T_out = words / 0.298 + 1000 cycles

Source of both formulas: published runs of the vendor's simulator on one channel.

One file, because it is the one class that a host script uses.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsInt, Unpack

import numpy as np
import numpy.typing as npt

from wse_sim.atomic_files import write_whole
from wse_sim.compile_time import clock
from wse_sim.csl.compiler import CompiledProgram, Export
from wse_sim.csl.host import arrays
from wse_sim.csl.host.arrays import TWICE, CopyWay, HostError, MemcpyDataType, StoppedError, Transfer
from wse_sim.csl.host.asked import asked_still_cycles, asked_threads
from wse_sim.csl.host.debugged import tell_end
from wse_sim.csl.host.faulted import told_fault
from wse_sim.csl.host.launches import LaunchWatch
from wse_sim.csl.host.layout_api import EXTRA_FILE, SYMBOLS_FILE
from wse_sim.csl.host.record import (
    STATE_FILE,
    Record,
    find_symbol,
    initial_values,
    keep,
    save_state,
    trace_values,
)
from wse_sim.csl.host.report import report_where_asked
from wse_sim.csl.host.sanitized import is_asked, keep_findings, of_host
from wse_sim.csl.host.stalled import Pulse, stands_still, would_wait
from wse_sim.csl.host.traced import traced_session, write_trace_where_asked
from wse_sim.csl.host.utils import input_array_to_u32
from wse_sim.fabric.vm.findings import Finding
from wse_sim.fabric.vm.session import Outcome, Session, Until
from wse_sim.files import is_file, read_json
from wse_sim.hardware import load_wafer

IN_WORDS_PER_CYCLE, IN_CYCLES = 0.868, 500
OUT_WORDS_PER_CYCLE, OUT_CYCLES = 0.298, 1000


@dataclass
class Task:
    """Command that the host script has issued; `done` is set when it has run."""

    run: Callable[[], None]
    name: str
    done: bool = field(default=False)


class SdkRuntime:
    """Runtime for the program in `bindir`, an output folder of ``wse-sim cslc -o``.

    Raises
    ------
    HostError
        If a call is invalid, the program faults, or a command would wait forever.
    """

    def __init__(
        self, bindir: str | os.PathLike[str], *_: object, cmaddr: str | None = None, **options: object
    ) -> None:
        if cmaddr:
            raise HostError(f"cmaddr '{cmaddr}' names a real system; this is a simulator: leave --cmaddr out")
        known = {"platform", "suppress_simfab_trace", "simfab_numthreads", "msg_level", "memcpy_required"}
        unknown = sorted(set(options) - known)
        if unknown:
            raise HostError(f"SdkRuntime has no option '{unknown[0]}'; use one of {', '.join(sorted(known))}")
        self.folder = Path(bindir).absolute()  # a script may leave its folder
        self._log_path = Path("sim.log").absolute()
        self.program = CompiledProgram.read(self.folder)
        self._ids = {export.name: export for export in self.program.exports}
        self._by_id = {export.id: export for export in self.program.exports}
        self._still_cycles = asked_still_cycles(self.program.width * self.program.height)
        self._session: Session | None = None
        self._watch: LaunchWatch | None = None
        self._row_cycles = 0
        self._running = self._has_run = False
        self._ended_badly = False
        self._findings: list[Finding] = []  # sanitizer findings in copies to the host
        self._queue: deque[Task] = deque()
        self._log: list[tuple[int, str]] = []
        self._open: dict[tuple[int, int], str] = {}
        self._traces: dict[tuple[int, int, str], list[object]] = {}
        self._received: dict[
            tuple[int, int, int], np.ndarray
        ] = {}  # words that arrived before the host requested them
        self._began_s = clock()[0]
        extra = self.folder / EXTRA_FILE
        self._layout: dict[str, Any] = read_json(extra, "the layout", HostError) if extra.is_file() else {}

    # -- life

    def load(self, *_: object, **__: object) -> None:
        """Load the program onto the fabric."""
        wafer = load_wafer(self.program.options.arch)
        self._watch, self._row_cycles = LaunchWatch.asked(self.program.image, wafer), wafer.launch_row_cycles
        self._session = traced_session(
            self.program.image,
            wafer,
            executor="oracle" if os.environ.get("WSE_SIM_CSL_EXECUTOR") == "oracle" else "fast",
            profile=bool(os.environ.get("WSE_SIM_CSL_REPORT_DIR")),
            threads=asked_threads(),
            schedule=self._watch is not None,
            sanitize=is_asked(),
        )

    def run(self, *_: object, **__: object) -> None:
        """Start the cores.

        Raises
        ------
        HostError
            If the program is not loaded or has already been started.
        """
        if self._session is None or self._has_run:
            raise HostError(f"run() {TWICE if self._has_run else 'before load(); call load() first'}")
        self._poke_symbols()
        self._running = self._has_run = True
        atexit.register(self._warn_unstopped)

    def _poke_symbols(self) -> None:
        """Write the initial values that a Python layout assigns to variables of single cores."""
        path = self.folder / SYMBOLS_FILE
        if not is_file(path):
            return
        self._spoil("the layout gives values to variables of single cores")
        for x, y, name, words in initial_values(path):
            symbol = find_symbol(self.program, x, y, name)
            if len(words) != symbol.words:
                raise HostError(
                    f"symbol '{name}' of core ({x}, {y}) has {symbol.words} words, {len(words)} are given"
                )
            self.session.poke(x, y, symbol.address, words)

    def stop(self, *_: object, **__: object) -> None:
        """Wait for all commands and stop; symbols and traces can still be read.

        Raises
        ------
        HostError
            If the program does not run.
        StoppedError
            If the program faults or would wait forever.
        """
        if not self._running:
            raise HostError(f"stop() {TWICE if self._has_run else 'before run(); call run() first'}")
        self._drain_queue()
        if self.program.options.memcpy:
            self._wait_for_commands("stop")
        else:
            self._advance(
                "idle"
            )  # without memcpy there is no command stream to release: the program runs until all cores are idle
        self._collect()
        self._running = False
        tell_end(self.session)
        for _, text in sorted(self._open.items()):
            self._log.append((self.session.cycle, text))
        self._write_log()
        seconds = clock()[0] - self._began_s
        record = Record(self.folder, self.program, self.session, self._traces, seconds)
        keep(record)
        if self._watch is not None:
            self._watch.end(self.session.picks())
        write_trace_where_asked(self.session)
        report_where_asked(record, keep_findings(self.session, self._findings))

    def _warn_unstopped(self) -> None:
        if self._running and not self._ended_badly:
            print(
                "wse-sim: the script ended without stop(), so its last commands did not run", file=sys.stderr
            )

    @property
    def session(self) -> Session:
        """Session that simulates the loaded program."""
        if self._session is None:
            raise HostError("the program is not loaded; call load() and run() first")
        return self._session

    # -- names

    def get_id(self, name: str) -> int:
        """Return the number of an exported name.

        Raises
        ------
        HostError
            If the program does not export it.
        """
        return self._export(name).id

    def _export(self, name: str) -> Export:
        if name not in self._ids:
            known = ", ".join(sorted(self._ids)) or "none"
            raise HostError(
                f"'{name}' is not an exported name of {self.folder}; the exported names are {known}"
            )
        return self._ids[name]

    # -- commands

    def launch(self, name: str, *args: object, nonblock: bool = False) -> Task:
        """Call an exported function on every core that has it; `nonblock` returns without waiting.

        Raises
        ------
        HostError
            If `name` is not an exported function, or the arguments do not fit its type.
        """
        export = self._export(name)
        if export.kind != "Func":
            raise HostError(f"'{name}' is a variable of type {export.type}; launch takes a function")
        if len(args) != len(export.inputs):
            raise HostError(
                f"'{name}' takes {len(export.inputs)} arguments ({export.type}), {len(args)} are given"
            )
        words = [
            arrays.argument_word(a, kind, label) for a, (label, kind) in zip(args, export.inputs, strict=True)
        ]
        return self._give(Task(lambda: self._launch(name, words), f"launch('{name}')"), nonblock)

    def call(self, name: str, words: Iterable[SupportsInt] = (), nonblock: bool = False, **_: object) -> Task:
        """Call an exported function with raw 32-bit argument words, which are not checked against its type.

        Raises
        ------
        HostError
            If the program does not export `name`.
        """
        self._export(name)
        raw = [int(w) & 0xFFFFFFFF for w in words]
        return self._give(Task(lambda: self._launch(name, raw), f"call('{name}')"), nonblock)

    def memcpy_h2d(
        self, dest: int, src: object, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Unpack[Transfer]
    ) -> Task:  # fmt: skip
        """Copy from the host to the cores: into the exported array `dest`, or with `streaming` as words of
        color `dest`.

        `src` has w * h * elem_per_pe 32-bit items; the region is w columns and h rows from (px, py).

        Raises
        ------
        HostError
            If the region, the array or a keyword is invalid, or the exported array is too small.
        """
        way = CopyWay.of("memcpy_h2d", how)
        region = self._region(px, py, w, h, elem_per_pe)
        items = arrays.host_items(src, w * h * elem_per_pe, "memcpy_h2d").copy()
        data = arrays.to_region(items, w, h, elem_per_pe, way.order)
        return self._in(dest, data, region, way)

    def memcpy_h2d_colbcast(
        self, dest: int, src: object, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Unpack[Transfer]
    ) -> Task:  # fmt: skip
        """Copy like :meth:`memcpy_h2d`, with the data of one row (1, w, elements) for every row of the
        region."""
        way = CopyWay.of("memcpy_h2d_colbcast", how)
        region = self._region(px, py, w, h, elem_per_pe)
        items = arrays.host_items(src, w * elem_per_pe, "memcpy_h2d_colbcast").copy()
        data = np.broadcast_to(arrays.to_region(items, w, 1, elem_per_pe, way.order), (h, w, elem_per_pe))
        return self._in(dest, data, region, way)

    def memcpy_h2d_rowbcast(
        self, dest: int, src: object, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Unpack[Transfer]
    ) -> Task:  # fmt: skip
        """Copy like :meth:`memcpy_h2d`, with the data of one column (h, 1, elements) for every column of the
        region."""
        way = CopyWay.of("memcpy_h2d_rowbcast", how)
        region = self._region(px, py, w, h, elem_per_pe)
        items = arrays.host_items(src, h * elem_per_pe, "memcpy_h2d_rowbcast").copy()
        data = np.broadcast_to(arrays.to_region(items, 1, h, elem_per_pe, way.order), (h, w, elem_per_pe))
        return self._in(dest, data, region, way)

    def memcpy_d2h(
        self, dest: object, src: int, px: int, py: int, w: int, h: int, elem_per_pe: int, **how: Unpack[Transfer]
    ) -> Task:  # fmt: skip
        """Copy from the cores into the host array `dest`: the exported array `src`, or with `streaming` the
        words of color `src`.

        `dest` has at least w * h * elem_per_pe 32-bit items; the region is w columns and h rows from (px,
        py).

        Raises
        ------
        HostError
            If the region, the array or a keyword is invalid, or a core does not export the array.
        """
        way = CopyWay.of("memcpy_d2h", how)
        region = self._region(px, py, w, h, elem_per_pe)
        items = arrays.host_items(dest, w * h * elem_per_pe, "memcpy_d2h")
        if way.streaming:
            self._stream_color(src, "memcpy_d2h")

        def work() -> None:
            if way.streaming:
                got = self._stream_out(int(src), region, elem_per_pe, way.data_type)
            else:
                self._wait_for_commands(f"memcpy_d2h of '{self._variable(src).name}'")
                self._pass(OUT_CYCLES)  # latency of the command from the host to the cores
                words = elem_per_pe * (1 if way.data_type == MemcpyDataType.MEMCPY_16BIT else 2)
                got = arrays.from_words(self._read(self._variable(src), region, words), way.data_type)
                self._pass(w * h * elem_per_pe / OUT_WORDS_PER_CYCLE / self._channels)
            items[:] = arrays.from_region(got, way.order)

        return self._give(Task(work, f"memcpy_d2h of {src}"), way.nonblock)

    # -- streams of a Python layout

    def send(self, stream: object, array: object, nonblock: bool = False, **_: object) -> Task:
        """Send an array of 16-bit or 32-bit elements to an input stream; 16-bit elements are zero-extended to
        32-bit words.

        Raises
        ------
        HostError
            If the stream does not exist or is an output stream.
        """
        place = self._stream(stream, want_input=True)
        words = input_array_to_u32(np.asarray(array))
        self.session.inject(place["x"], place["y"], place["color"], words, port=place["port"])
        what = f"send of {words.size} words"
        return self._give(Task(lambda: void(self._advance("injected", what=what)), what), nonblock)

    def receive(self, stream: object, array: object, n: int, nonblock: bool = False, **_: object) -> Task:
        """Receive `n` words from an output stream into an array of 32-bit items.

        Raises
        ------
        HostError
            If the stream does not exist or is an input stream, or the array is too small.
        """
        place = self._stream(stream, want_input=False)
        items = arrays.host_items(array, int(n), "receive")
        x, y, color = place["x"], place["y"], place["color"]
        what = f"receive of {n} words"

        self.session.expect(x, y, color, int(n))

        def work() -> None:
            self._advance("drained", what=what)
            came = [
                self._received.get((x, y, color), np.zeros(0, np.uint32)),
                self.session.drain(x, y, color),
            ]
            words = np.concatenate(came)
            items[:], self._received[x, y, color] = words[:n], words[n:]

        return self._give(Task(work, what), nonblock)

    def _stream(self, stream: object, *, want_input: bool) -> dict[str, Any]:
        places = self._layout.get("streams", [])
        index = getattr(stream, "index", stream)
        if not isinstance(index, int) or not 0 <= index < len(places):
            raise HostError(f"{stream!r} is not a stream of this layout; it has {len(places)}")
        place = dict(places[index])
        if place["input"] != want_input:
            raise HostError(
                f"stream {index} goes {'in' if place['input'] else 'out'}; use {'send' if place['input'] else 'receive'}"
            )
        return place

    def task_wait(self, task: Task) -> None:
        """Run commands until `task` is done."""
        while not task.done:
            self._next()

    def is_task_done(self, task: Task) -> bool:
        """Return whether a command is done; if it is not, run the next command of the queue first."""
        if not task.done and self._queue:
            self._next()
        return task.done

    def read_symbol(self, px: int, py: int, symbol: str, dtype: npt.DTypeLike = np.uint16) -> np.ndarray:
        """Return the values of a symbol of core (px, py) of the rectangle as `dtype`, also after stop().

        Raises
        ------
        HostError
            If the core or the symbol does not exist.
        """
        from wse_sim.csl.host.record import symbol_values

        return symbol_values(self.program, self.session, px, py, symbol, dtype)

    def dump_core(self, path: str | os.PathLike[str] = "corefile.cs1") -> None:
        """Write the memory and traces of all cores to `path`, and to the program's folder, where `debug_util`
        reads them."""
        save_state(Path(path), self.program, self.session, self._traces)
        save_state(self.folder / STATE_FILE, self.program, self.session, self._traces)

    # -- how commands run

    @property
    def _channels(self) -> int:
        return max(1, self.program.options.channels)

    def _give(self, task: Task, nonblock: bool) -> Task:
        if not self._running:
            raise HostError(f"{task.name}: the program does not run; call load() and run() first")
        self._queue.append(task)
        if not nonblock:
            self.task_wait(task)
        return task

    def _next(self) -> None:
        task = self._queue.popleft()
        task.run()
        task.done = True
        self._collect()

    def _drain_queue(self) -> None:
        while self._queue:
            self._next()

    def _launch(self, name: str, words: list[int]) -> None:
        self._wait_for_commands(f"launch of '{name}'")
        image = self.program.image
        if self._watch is not None:
            self._watch.launch(name, words, self.session.cycle)
        has = [any(s.name == name and s.kind == "function" for s in cls.symbols) for cls in image.classes]
        here = np.array([*has, False])[image.core_class].reshape(image.rows, image.cols)
        if here.all():
            self.session.launch(0, 0, image.cols, image.rows, name, words, row_cycles=self._row_cycles)
        else:
            for y in np.flatnonzero(here.any(axis=1)):
                ends = np.flatnonzero(np.diff(here[y].astype(np.int8), prepend=0, append=0))
                for first, end in zip(ends[::2], ends[1::2], strict=True):
                    self.session.launch(
                        int(first), int(y), int(end - first), 1, name, words, row_cycles=self._row_cycles
                    )
        self._advance([], cycles=1)

    def _in(self, dest: int, data: np.ndarray, region: tuple[int, int, int, int], way: CopyWay) -> Task:
        if way.streaming:
            self._stream_color(dest, "memcpy_h2d")

        def work() -> None:
            if way.streaming:
                self._stream_in(int(dest), data, region)
                return
            variable = self._variable(dest)
            # What an immutable pointer points to may change.
            if variable.immutable and "*" not in variable.type:
                raise HostError(
                    f"'{variable.name}' is exported as immutable; export it as mutable to copy into it"
                )
            self._check_room(variable, region, data.shape[-1], way)
            self._wait_for_commands(f"memcpy_h2d to '{variable.name}'")
            self._pass(IN_CYCLES + data.size / IN_WORDS_PER_CYCLE / self._channels)
            self._write(variable, region, arrays.to_words(data, way.data_type))

        return self._give(Task(work, f"memcpy_h2d to {dest}"), way.nonblock)

    def _stream_color(self, number: object, call: str) -> int:
        """Return the number of a color that the layout binds to a host stream."""
        color, bound = arrays.whole(number, "the color of a stream"), self.program.image.host_colors
        if color not in bound:
            known = ", ".join(map(str, bound)) or "none"
            raise HostError(
                f"{call}: color {color} is not a host stream; the program binds {known}; "
                "bind it in the layout, as .MEMCPYH2D_1 or .MEMCPYD2H_1 of <memcpy/get_params>, or copy with streaming=False"
            )
        return color

    def _stream_in(self, color: int, data: np.ndarray, region: tuple[int, int, int, int]) -> None:
        self._wait_for_commands(f"streaming memcpy_h2d on color {color}")
        self._spoil(f"the host sends words on color {color}")
        self._pass(IN_CYCLES)  # latency of the first word from the host
        px, py, w, h = region
        words = data  # all 32 bits: the high half of a 16-bit item may contain an index
        period = round(1000 / IN_WORDS_PER_CYCLE * w * h / self._channels)
        self.session.inject_region(px, py, w, h, color, words, period_milli=max(1000, period))
        self._advance("injected", what=f"memcpy_h2d of {words.size} words on color {color}")

    def _stream_out(
        self, color: int, region: tuple[int, int, int, int], n: int, data_type: int
    ) -> np.ndarray:
        self._wait_for_commands(f"streaming memcpy_d2h on color {color}")
        self._spoil(f"the host receives words on color {color}")
        px, py, w, h = region
        self.session.expect(px, py, color, n, w=w, h=h)
        self._advance("drained", what=f"memcpy_d2h of {w * h * n} words on color {color}")
        got = self.session.drain_region(px, py, w, h, color, n)
        return got & 0xFFFF if data_type == MemcpyDataType.MEMCPY_16BIT else got

    def _region(self, px: int, py: int, w: int, h: int, elements: int) -> tuple[int, int, int, int]:
        px, py, w, h, elements = (
            arrays.whole(v, what)
            for v, what in zip(
                (px, py, w, h, elements), ("px", "py", "width", "height", "elements"), strict=True
            )
        )
        image = self.program.image
        if px < 0 or py < 0 or w < 1 or h < 1 or px + w > image.cols or py + h > image.rows:
            raise HostError(
                f"the region of {w} x {h} cores at ({px}, {py}) is not in the rectangle of {image.cols} x {image.rows}"
            )
        if elements < 1:
            raise HostError(f"{elements} elements per core are requested; give at least 1")
        return px, py, w, h

    def _variable(self, number: object) -> Export:
        export = self._by_id.get(arrays.whole(number, "the number of an exported name"))
        if export is None or export.kind != "Var":
            raise HostError(
                f"{number} is not an exported variable; use get_id(NAME), and streaming=True for a color"
            )
        return export

    # -- memory

    def _addresses(self, variable: Export, region: tuple[int, int, int, int]) -> np.ndarray:
        """Return the word address (h, w) of an exported name on each core; a pointer is followed with its
        present value."""
        from wse_sim.csl.host.record import address_of

        px, py, w, h = region
        image = self.program.image
        known = {k: address_of(self.program, k, variable.name) for k in np.unique(image.core_class)}
        cores = image.core_class.reshape(image.rows, image.cols)[py : py + h, px : px + w]
        found = np.zeros((h, w), np.int64)
        for k in np.unique(cores):
            place = known[int(k)]
            if place is None:
                where = np.argwhere(cores == k)[0]
                raise HostError(
                    f"core ({px + where[1]}, {py + where[0]}) has no symbol '{variable.name}'; choose the cores that export it"
                )
            found[cores == k] = place[0]
            if place[1]:
                held = self.session.peek_region(px, py, w, h, place[0], 1)[..., 0]
                found[cores == k] = held[cores == k]
        return found

    def _check_room(
        self, variable: Export, region: tuple[int, int, int, int], elements: int, way: CopyWay
    ) -> None:
        """Raise an error if a copy would write beyond the end of the array; an odd last word may be
        padded."""
        words = elements * (1 if way.data_type == MemcpyDataType.MEMCPY_16BIT else 2)
        px, py, w, h = region
        image = self.program.image
        cores = image.core_class.reshape(image.rows, image.cols)[py : py + h, px : px + w]
        at = self._addresses(variable, region)
        for k, first in np.unique(np.stack([cores.ravel(), at.ravel()]), axis=1).T:
            arrays_here = (s for s in image.classes[k].symbols if s.kind == "var")
            room = next(
                (s.address + s.words - first for s in arrays_here if 0 <= first - s.address < s.words), None
            )
            if room is not None and words > room + room % 2:
                y, x = np.argwhere((cores == k) & (at == first))[0]
                raise HostError(
                    f"memcpy_h2d of {elements} elements of {16 * words // elements} bits needs {words} words, and '{variable.name}' "
                    f"of core ({px + x}, {py + y}) has {room}; copy fewer elements, or 16-bit ones with data_type=MEMCPY_16BIT"
                )

    def _read(self, variable: Export, region: tuple[int, int, int, int], words: int) -> np.ndarray:
        px, py, w, h = region
        at = self._addresses(variable, region)
        if is_asked():
            for first in np.unique(at):
                self._findings += of_host(self.session, variable.name, region, at == first, int(first), words)
        if (at == at[0, 0]).all():
            return self.session.peek_region(px, py, w, h, int(at[0, 0]), words)
        rows = [[self.session.peek(px + i, py + j, int(at[j, i]), words) for i in range(w)] for j in range(h)]
        return np.array(rows)

    def _write(self, variable: Export, region: tuple[int, int, int, int], words: np.ndarray) -> None:
        px, py, w, h = region
        at = self._addresses(variable, region)
        if self._watch is not None:
            for first in np.unique(at):
                self._watch.copied(self.session.cycle, int(first), int(first) + words.shape[-1])
        if (at == at[0, 0]).all():
            self.session.poke_region(px, py, w, h, int(at[0, 0]), words)
            return
        for j in range(h):
            for i in range(w):
                self.session.poke(px + i, py + j, int(at[j, i]), words[j, i])

    # -- time

    def _pass(self, cycles: float) -> None:
        self._advance([], cycles=round(cycles))

    def _wait_for_commands(self, what: str) -> None:
        self._advance("commands", what=what)
        if self._watch is not None:
            self._watch.released(self.session.cycle)

    def _spoil(self, reason: str) -> None:
        """Record that the static analysis does not support the host's next action."""
        if self._watch is not None:
            self._watch.spoil(reason)

    def _advance(
        self, until: Until | Iterable[Until], *, cycles: int | None = None, what: str = ""
    ) -> Outcome:
        pulse = Pulse(what)
        try:
            outcome = self.session.advance(
                until, cycles=cycles, still_cycles=self._still_cycles, look=pulse.look
            )
        except KeyboardInterrupt:
            self._ended_badly = True
            doing = [pulse.alive(), *self.session.doing()]
            print(f"wse-sim: interrupted at cycle {self.session.cycle}", *doing, sep="\n  ", file=sys.stderr)
            raise
        self._collect()
        self._ended_badly = outcome.reason in ("fault", "waits", "still")
        if self._ended_badly:
            raise StoppedError(self._bad_end(outcome, what))
        return outcome

    def _bad_end(self, outcome: Outcome, what: str) -> str:
        """Write the logs and reports of a failed run, and return the reason for its failure."""
        self._write_log()
        if outcome.reason == "fault":
            said = told_fault(outcome.fault, outcome.cycle, self.folder)
        elif outcome.reason == "waits":
            said = would_wait(what, self.session)
        else:
            said = stands_still(what or "the program", self.session, self._still_cycles)
        record = Record(self.folder, self.program, self.session, self._traces, clock()[0] - self._began_s)
        write_trace_where_asked(self.session)
        report_where_asked(record, keep_findings(self.session, self._findings), said)
        return said

    # -- what cores print

    def _collect(self) -> None:
        for printed in self.session.prints():
            key = (printed.x, printed.y)
            if printed.traced:
                name = self.program.image.prints[printed.row]
                self._traces.setdefault((*key, name[0]), []).extend(
                    trace_values(self.program.image, name[1], printed.values)
                )
                continue
            text = self._open.pop(key, "") + printed.text
            *lines, rest = text.split("\n")
            self._log += [(printed.cycle, line) for line in lines]
            if rest:
                self._open[key] = rest

    def _write_log(self) -> None:
        lines = [f"@{cycle} {text}" for cycle, text in self._log]
        write_whole(self._log_path, "".join(f"{line}\n" for line in lines))


def void(_: object) -> None:
    """Discard a value."""
