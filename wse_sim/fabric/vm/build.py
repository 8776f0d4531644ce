"""From an image and a wafer to the machine at cycle 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.format.builder import die_edges
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm import watch as W
from wse_sim.fabric.vm.arithmetic import operation_table
from wse_sim.fabric.vm.branches import branch_prices
from wse_sim.fabric.vm.image import COLORS, CoreClass, Image
from wse_sim.fabric.vm.issue_times import known_loads, vector_starts
from wse_sim.fabric.vm.registers import REGISTERS

Array = npt.NDArray[Any]
_LATE = (O.Op.VEC, O.Op.SYS, O.Op.BLOCK)
_LOADS = {
    O.Op.LD_I16,
    O.Op.LD_U16,
    O.Op.LD_I32,
    O.Op.LD_U32,
    O.Op.LD_64,
    O.Op.LDX_I16,
    O.Op.LDX_U16,
    O.Op.LDX_I32,
    O.Op.LDX_U32,
}
SLACK = 4096

NO_PERIOD = (
    1 << 20
)  # of 16-bit vectors: published rates of WSE-2 and WSE-3 are those of reads that never collide, whatever their places
MOST_CELLS = 255  # of a router queue: heads and counts are bytes


def priced_code(image: Image, costs: Mapping[str, int]) -> tuple[Array, Array]:
    """Code with the price of every row in its first column, and what is paid when a row is due: its price, or that of a jump that is taken.

    A load whose result the next row reads costs one cycle more (``load_use``).
    """
    code = np.ascontiguousarray(image.code, np.int32).copy()
    prices = np.array([costs[name] for name in O.COST_CLASSES], np.int64)
    price = prices[image.cost_class] if len(code) else np.zeros(0, np.int64)
    loads = np.isin(code[:, 0], [int(op) for op in _LOADS]) & (price > 0)
    uses = np.zeros(len(code), bool)
    if len(code) > 1:
        uses[:-1] = loads[:-1] & (
            (code[1:, 2] == code[:-1, 1])
            | (code[1:, 3] == code[:-1, 1])
            | (
                np.isin(code[1:, 0], [O.Op.ST_16, O.Op.ST_32, O.Op.JZ, O.Op.JNZ])
                & (code[1:, 1] == code[:-1, 1])
            )
        )
    price = price + uses * costs["load_use"]
    fewer = known_loads(image, code) * costs["dsr_shape"]
    price = price - fewer * (code[:, 0] == O.Op.DSR_LOAD)
    price, toll = branch_prices(code, price, costs) if len(code) else (price, price)
    late = np.isin(code[:, 0], [int(op) for op in _LATE])
    starts = vector_starts(image, code, price, costs) - fewer if len(code) else price
    late_price = np.where(code[:, 0] == O.Op.VEC, starts, np.where(late, price, toll)).astype(np.int32)
    code[:, 0] |= (np.where(late, 0, price) << 8).astype(np.int32)
    return code.reshape(-1), late_price


def make_machine(
    image: Image,
    config: FabricConfig,
    output_queues: Sequence[int],
    costs: Mapping[str, int],
    *,
    strict: bool,
    profile: bool,
    watch: bool = False,
) -> S.Machine:
    """The machine at cycle 0, memories filled.

    Raises
    ------
    ProgramError
        If the image contradicts itself, a queue is bound to no color, or the wafer is of another generation.
    """
    image.validate()
    n, classes = image.n_cores, image.classes or (CoreClass("none"),)
    colors = S.used_colors(image)
    slot_of = np.full(32, -1, np.int32)
    slot_of[colors] = np.arange(len(colors))
    slots = max(1, len(colors))
    is_wse3 = image.arch == "wse3"
    queue_of, in_slots, n_queues = S.input_queues(image, slot_of)
    delay = config.ring_delay_cycles
    outputs = len(output_queues)
    in_depth = np.array(
        [*config.input_queue_wavelets, *[config.default_input_wavelets] * n_queues][:n_queues], np.int32
    )
    out_depth = np.array([depth + delay for depth in output_queues], np.int32)
    cells, edges = config.router_queue_wavelets, die_edges(image.rows, config)
    crossing = config.die_crossing_cycles if edges.any() else 0
    cap = cells * (config.hop_cycles + config.turn_cycles + crossing)
    if cap > MOST_CELLS:
        raise ProgramError(
            f"{config.name}: a router queue of {cap} cells, limit {MOST_CELLS}; lower router_queue_wavelets or the "
            "cycles of a link"
        )
    core_class = np.asarray(image.core_class, np.int64)
    n_registers = max(16, *(cls.registers for cls in classes))
    n_calls = max(2, *(cls.call_depth for cls in classes))
    n_dsrs = max(1, *(cls.dsrs for cls in classes))
    n_fifos = max(1, *(len(cls.fifos) for cls in classes))
    words = memory_words(image)
    sets = np.zeros(S.SETTINGS, np.int64)
    for name, value in {
        "ROWS": image.rows, "COLS": image.cols, "SLOTS": slots, "WORDS": words, "REGISTERS": n_registers, "CALLS": n_calls, "DSRS": n_dsrs,
        "FIFOS": n_fifos, "QUEUES": n_queues, "OUTPUTS": outputs, "HOP": config.hop_cycles, "TURN_COST": config.turn_cycles, "CROSSING": config.die_crossing_cycles, "CELLS": cells,
        "CAP": cap, "WAVELET_MILLI": config.wavelet_milli, "ROUND_ROBIN": config.round_robin, "STRICT": strict, "RAMP_DELAY": delay,
        "IS_WSE3": is_wse3, "PICK": costs["task_pick"], "CONFLICT": config.conflict_milli,
        "PROFILE": profile, "BUDGET": 4096, "OFFSET_X": image.offset[0], "OFFSET_Y": image.offset[1], "DSR_COST": costs["dsr_load"], "SHAPE_COST": costs["dsr_further"], "DEPENDENT": costs["vector_dependent"],
        "BANK_PERIOD_16": NO_PERIOD,
        "BANK_PERIOD_32": config.fp32_bank_period_words, "MAP_MILLI": config.map_element_milli % 1000,
        "MAP_VECTOR_MILLI": config.map_vector_milli, "WATCH": watch, "SCALAR_WORDS": 0 if watch else words,
        "HALF": O.HALF_FORMATS.index(image.half),
    }.items():  # fmt: skip
        sets[getattr(S, name)] = int(value)
    code, late_price = priced_code(image, costs)
    task_table, task_ids = S.task_tables(image)
    tables = _class_tables(classes, slot_of, outputs)
    out_color = tables.pop("out_color")
    known = np.maximum(core_class, 0)
    core = _cores(image, known, core_class)
    route, rstate, filter_row, filter_count = _routes(image, colors, slots)
    host_slot = np.zeros(slots, np.uint8)
    host_slot[[slot_of[c] for c in image.host_colors if 0 <= c < COLORS]] = 1
    in_deepest, out_deepest = int(in_depth.max()), int(out_depth.max())
    lazy = S.lazy_zeros
    machine = S.Machine(
        sets=sets, die_edges=np.repeat(edges, image.cols), code=code, late_price=late_price, issues=np.ascontiguousarray(image.vector_issues, np.int32),
        loads=np.ascontiguousarray(image.dsr_loads, np.int32), shapes=np.ascontiguousarray(image.shapes, np.int32),
        rings=np.ascontiguousarray(image.rings, np.int32), filters=_filters(image, slots),
        task_table=task_table, task_ids=task_ids, owner=S.owners(image, words), vop=operation_table(config, O.HALF_FORMATS.index(image.half)), prices=np.zeros(1, np.int64),
        slot_of=slot_of, color_of=np.array(colors or [0], np.int32), host_slot=host_slot, in_depth=in_depth, out_depth=out_depth,
        memory=lazy((n * words,), np.uint16), regs=lazy((n * n_registers + SLACK,), np.int64), calls=lazy((n * n_calls * 2 + 2,), np.int32),
        core=core, arguments=lazy((n, 16), np.int64), threads=lazy((S.N_THREADS, n, S.THREAD_FIELDS), np.int32), dsr=lazy((n, 3 * n_dsrs), np.int64),
        dsr_row=np.full((n, 3 * n_dsrs), -1, np.int32), fifo=lazy((n, n_fifos, 4), np.int32), color_queue=queue_of[known],
        out_color=out_color[known], in_color=in_slots[known], iq_count=lazy((n_queues, n), np.int32), iq_head=lazy((n_queues, n), np.int32),
        iq_last=np.full((n_queues, n), -1, np.int64), iq_word=lazy((n_queues, n, in_deepest), np.uint32),
        iq_meta=lazy((n_queues, n, in_deepest), np.uint8), oq_count=lazy((outputs, n), np.int32), oq_head=lazy((outputs, n), np.int32),
        oq_word=lazy((outputs, n, out_deepest), np.uint32), oq_meta=lazy((outputs, n, out_deepest), np.uint8),
        oq_time=lazy((outputs, n, out_deepest), np.int64), route=route, rstate=rstate, switch_word=lazy((1 if is_wse3 else slots * n,), np.uint16), filter_row=filter_row, filter_count=filter_count,
        kept=lazy((n if _uses(image, O.Sys.READ_CONFIG, O.Sys.WRITE_CONFIG) else 0, REGISTERS), np.uint16, is_sparse=True),
        pointer=np.zeros(n, np.uint8), waiting=np.zeros(n, np.int32), occupied=np.zeros(n, np.int64), q_count=lazy((slots * n * 5,), np.uint8),
        q_head=lazy((slots * n * 5,), np.uint8), q_word=lazy((slots * n * 5, cap), np.uint32), q_flag=lazy((slots * n * 5, cap), np.uint8),
        q_stamp=lazy((slots * n * 5, cap), np.int64), port_free=lazy((n, 5), np.int64), links=lazy((n, 5), np.int64),
        blocked=lazy((n, 5), np.int64), credit=lazy((slots, n), np.int64), host_words=np.zeros(1, np.uint32),
        log=lazy((2 * n + 4096, S.LOG_FIELDS), np.int64), drained=lazy((6 * n + 65536, 4), np.int64),
        profile=lazy((len(classes) if profile else 1, max(1, len(image.code)) if profile else 1, 2), np.int64), size=np.zeros(S.SIZES, np.int64),
        router_list=lazy((n,), np.int32), router_listed=lazy((n,), np.uint8), ready=lazy((2, n), np.int32), listed=lazy((n,), np.uint8),
        rings_list=lazy((n,), np.int32), ring_listed=lazy((n,), np.uint8), wheel=np.full(S.WHEEL, -1, np.int32), chain=np.full(n, -1, np.int32),
        wake_at=lazy((n,), np.int64),
        **tables, **_shadows(image, (outputs, out_deepest), (n_queues, in_deepest), (slots, cap), words, watch=watch),
    )  # fmt: skip
    for k, cls in enumerate(classes):
        cores = np.flatnonzero(core_class == k)
        memory = machine.memory.reshape(n, words)
        for address, data in cls.memory:
            if np.any(data):
                memory[cores, address : address + len(data)] = np.asarray(data, np.uint16)
    runnable = np.flatnonzero(core_class >= 0)
    machine.ready[0, : len(runnable)] = runnable
    machine.listed[runnable] = 1
    machine.size[S.N_READY] = len(runnable)
    return machine


def _class_tables(classes: Sequence[CoreClass], slot_of: Array, outputs: int) -> dict[str, Array]:
    """Return tables by class: constants, FIFOs, entries of teardown and of empty queues, slots of output queues."""
    n = len(classes)
    constants = np.zeros((n, max(1, *(len(cls.constants) for cls in classes))), np.int64)
    fifos = np.zeros((n, max(1, *(len(cls.fifos) for cls in classes)), 5), np.int32)
    teardown = np.full((n, COLORS), -1, np.int32)
    empties = np.full((n, 2 * O.QUEUES), -1, np.int32)
    out_color = np.full((n, outputs), -1, np.int32)
    for k, cls in enumerate(classes):
        constants[k, : len(cls.constants)] = [_signed64(value) for value in cls.constants]
        for i, fifo in enumerate(cls.fifos):
            fifos[k, i] = (fifo.base, fifo.words, fifo.element_words, fifo.activate_push, fifo.activate_pop)
        for color, entry in cls.teardown:
            teardown[k, color] = entry
        for queue, entry in cls.empty_handlers:
            empties[k, queue] = entry
        for queue, color in cls.output_colors:
            if queue < outputs:
                out_color[k, queue] = slot_of[color]
    return {
        "constants": constants, "fifos": fifos, "teardown": teardown, "empties": empties, "out_color": out_color,
    }  # fmt: skip


def _shadows(
    image: Image,
    out: tuple[int, int],
    into: tuple[int, int],
    cells: tuple[int, int],
    words: int,
    *,
    watch: bool,
) -> dict[str, Array]:
    """Return the sanitizer's shadow arrays; ``out``, ``into`` and ``cells`` are numbers of queues and their
    depths."""
    n, slots = image.n_cores if watch else 0, cells[0]
    lazy = S.lazy_zeros
    return {
        "written": _written(image, words) if watch else np.zeros(0, np.uint8),
        "oq_from": lazy((out[0], n, out[1], W.FROM_FIELDS), np.int64),
        "q_from": lazy((slots * n * 5, cells[1], W.FROM_FIELDS), np.int64),
        "iq_from": lazy((into[0], n, into[1], W.FROM_FIELDS), np.int64),
        "merged": lazy((slots * n, 4), np.int64),
        "found_count": np.zeros((W.KINDS, len(image.code) if watch else 0), np.int64),
        "found": np.zeros((W.MOST_FINDINGS if watch else 0, W.FINDING_FIELDS), np.int64),
        "stops": np.zeros(0, np.int64),
    }


def _written(image: Image, words: int) -> Array:
    """Words of memory that have a value at the start."""
    found = S.lazy_zeros((image.n_cores * words,), np.uint8)
    rows = found.reshape(image.n_cores, words)
    for k, cls in enumerate(image.classes):
        cores = np.flatnonzero(np.asarray(image.core_class) == k)
        for address, n in cls.initial:
            rows[cores, address : address + n] = 1
    return found


def memory_words(image: Image) -> int:
    """Return the words of memory that the machine allocates: up to the end of the largest class's data;
    higher words have no address."""
    ends = [cls.data_words for cls in image.classes]
    ends += [address + len(data) for cls in image.classes for address, data in cls.memory]
    ends += [fifo.base + fifo.words for cls in image.classes for fifo in cls.fifos]
    return min(O.WORDS, -(-max([64, *ends]) // 16) * 16)


def _signed64(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _cores(image: Image, known: Array, core_class: Array) -> Array:
    core = np.zeros((image.n_cores, S.CORE_FIELDS), np.int64)
    classes = image.classes or (CoreClass("none"),)

    def masks(name: str) -> Array:
        return np.array(
            [_signed64(sum(1 << i for i in set(getattr(cls, name)))) for cls in classes], np.int64
        )

    core[:, S.CLASS] = known
    core[:, S.MODE] = np.where(core_class >= 0, S.IDLE, S.NO_PROGRAM)
    core[:, S.ACTIVE] = masks("active")[known]
    core[:, S.BLOCKED] = masks("blocked")[known]
    core[:, S.THREADS_BLOCKED] = masks("blocked_threads")[known]
    core[:, S.MAIN_PRIORITY] = np.array([int(cls.main_priority) for cls in classes], np.int64)[known]
    core[:, S.PRNG] = 0xDEADBEEF
    high = [_signed64(sum(1 << task.id for task in cls.tasks if task.high_priority)) for cls in classes]
    core[:, S.HIGH_TASKS] = np.array(high, np.int64)[known]
    core[:, S.COMMAND] = np.array([cls.start for cls in classes], np.int64)[known]
    core[core_class < 0, S.COMMAND] = -1
    return core


def _uses(image: Image, *functions: int) -> bool:
    """True if the code calls one of these functions of the machine."""
    return bool(np.any((image.code[:, 0] == O.Op.SYS) & np.isin(image.code[:, 3], functions)))


def changes_routes(image: Image) -> bool:
    """True if the program sets routes of a router while it runs."""
    return _uses(image, O.Sys.SET_ROUTES, O.Sys.SET_SWITCH, O.Sys.INVALIDATE_SWITCH)


def _filters(image: Image, slots: int) -> Array:
    """The image's filters; behind them its own row for every (slot, core) if programs change single fields."""
    own = slots * image.n_cores if _uses(image, O.Sys.FILTER_FIELD) else 0
    filters = S.lazy_zeros((len(image.filters) + own, O.FILTER_FIELDS), np.int64)
    filters[: len(image.filters)] = image.filters
    return filters


def _routes(image: Image, colors: list[int], slots: int) -> tuple[Array, Array, Array, Array]:
    """Routes of all positions, states and filters of every (slot, core)."""
    n = image.n_cores
    table = np.zeros((len(image.configs) + 1, 4), np.uint16)
    states = np.zeros(len(image.configs) + 1, np.uint8)
    rows = np.full(len(image.configs) + 1, -1, np.int32)
    for i, config in enumerate(image.configs, 1):
        for k, (rx, tx) in enumerate(config.positions):
            table[i, k] = rx | tx << 5
        states[i] = (
            config.position
            | (S.RING_BIT if config.ring else 0)
            | int(config.pop) << 3
            | (config.swap & 3) << 5
            | (S.TORN if config.teardown else 0)
        )
        rows[i] = config.filter
    route = S.lazy_zeros((slots * n * 4,), np.uint16)
    rstate = S.lazy_zeros((slots * n,), np.uint8)
    has_filters = bool(len(image.filters)) or _uses(image, O.Sys.SET_FILTER, O.Sys.FILTER_FIELD)
    filter_row = np.full(slots * n if has_filters else 0, -1, np.int32)
    filter_count = np.zeros(slots * n if has_filters else 0, np.int64)
    for slot, color in enumerate(colors):
        if not image.config.shape[1]:
            break
        chosen = np.asarray(image.config[color], np.int64)
        if chosen.max(initial=0) > len(image.configs):
            raise ProgramError(
                f"color {color} uses configuration {chosen.max()} and the image has {len(image.configs)}"
            )
        route.reshape(slots, n, 4)[slot] = table[chosen]
        rstate.reshape(slots, n)[slot] = states[chosen]
        if has_filters:
            filter_row.reshape(slots, n)[slot] = rows[chosen]
            start = np.append(image.filters[:, O.F_INIT], 0)
            filter_count.reshape(slots, n)[slot] = start[rows[chosen]]
    return route, rstate, filter_row, filter_count
