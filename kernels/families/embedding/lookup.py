"""Programs of embeddings other than the streamed gather: stationary tables, and gradients.

gather, stationary table    token ids arrive down every column; each core runs a data task per id; the core of the row
                            that owns the vector sends its piece southward, the rows below relay it word by word
gradient, stationary table  an id and the gradient's piece arrive down every column; the owner adds, the others discard
gradient, streamed          cores send the gradients of their tokens west, the nearest first: its last word switches the
                            router to pass words from the east
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Travel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.family import Array, Case

IDS = 0
PIECES = (1, 2)  # alternating by parity


def _tables(rows: int, cols: int, tokens: int, f: int, vocab: int, seed: int) -> tuple[Any, Any]:
    """Return a table of integers (rows, cols, vocab, f), and ids (tokens,) of its rows * vocab vectors."""
    rng = np.random.default_rng(seed)
    table = rng.integers(-9, 9, (rows, cols, vocab, f)).astype(np.float32)
    return table, rng.integers(0, rows * vocab, tokens)


def gather_program(
    rows: int, cols: int, tokens: int, f: int, vocab: int, wafer: Wafer, dtype: str, seed: int
) -> Case:
    """Return the program that gathers `tokens` vectors from a table: `vocab` vectors per row of cores, f
    elements per column."""
    table, ids = _tables(rows, cols, tokens, f, vocab, seed)
    b = new_builder(rows + 2, cols, wafer)
    inner, every = slice(1, rows + 1), slice(None)
    x, word = b.buffer("table", vocab * f, dtype, (inner, every)), b.buffer("word", 1, "fp32", (inner, every))
    sent = b.buffer("ids", tokens, "fp32", (0, every))
    y = b.buffer("y", tokens * f, dtype, (rows + 1, every))
    _feeder(b, rows, lambda k: k.mov(fabric_out(IDS), sent.dsd(), start="none"))
    for i in range(rows):
        k, into, onward = b.core_class(f"row {i}"), PIECES[(i + 1) % 2], PIECES[i % 2]
        for token in ids:
            owner, vector = divmod(int(token), vocab)
            _take_id(k, word, wafer)
            if owner == i:
                k.mov(fabric_out(onward), x.dsd(vector * f, f), dtype=dtype, start="none")
            elif owner < i:
                k.mov(fabric_out(onward), fabric_in(into), length=f, dtype=dtype, start="none")
        b.place(k, (i + 1, every))
        b.route(onward, (i + 1, every), rx="R", tx="S")
        if i > 0:
            b.route(into, (i + 1, every), rx="N", tx="R")
    collector = b.core_class("collector")
    with collector.loop(tokens):
        collector.mov(y.dsd(0, f, step=f), fabric_in(PIECES[(rows - 1) % 2]), dtype=dtype, start="none")
    b.place(collector, (rows + 1, every))
    b.route(PIECES[(rows - 1) % 2], (rows + 1, every), rx="N", tx="R")
    flat = table.swapaxes(1, 2).reshape(rows * vocab, cols, f)
    expected = flat[ids].swapaxes(0, 1).reshape(1, cols, tokens * f)
    return _case(b, table, ids, {}, {"y": expected})


def gradient_program(
    rows: int, cols: int, tokens: int, f: int, vocab: int, wafer: Wafer, dtype: str, seed: int
) -> Case:
    """Return the program that adds gradients of `tokens` vectors into a stationary table of fp32 sums."""
    table, ids = _tables(rows, cols, tokens, f, vocab, seed)
    values = np.random.default_rng(seed + 1).integers(-9, 9, (1, cols, tokens * f)).astype(np.float32)
    b = new_builder(rows + 1, cols, wafer)
    inner, every = slice(1, rows + 1), slice(None)
    sums, word = (
        b.buffer("table", vocab * f, "fp32", (inner, every)),
        b.buffer("word", 1, "fp32", (inner, every)),
    )
    other = b.buffer("other", f, dtype, (inner, every))
    sent, g = b.buffer("ids", tokens, "fp32", (0, every)), b.buffer("g", tokens * f, dtype, (0, every))
    add: Travel = {"dtype": "mixed", "wire": "fp16x2"} if dtype == "fp16" else {"dtype": dtype}

    def feed(k: CoreClass) -> None:
        with k.loop(tokens):
            k.mov(fabric_out(IDS), sent.dsd(0, 1, step=1), start="none")
            k.mov(fabric_out(IDS), g.dsd(0, f, step=f), dtype=dtype, start="none")

    _feeder(b, rows, feed)
    for i in range(rows):
        k = b.core_class(f"row {i}")
        for token in ids:
            owner, vector = divmod(int(token), vocab)
            _take_id(k, word, wafer)
            if owner == i:
                mine = sums.dsd(vector * f, f)
                k.add(mine, mine, fabric_in(IDS), start="none", **add)
            else:
                k.mov(other.dsd(), fabric_in(IDS), dtype=dtype, start="none")
        b.place(k, (i + 1, every))
    expected = table.swapaxes(1, 2).reshape(rows * vocab, cols, f).copy()
    np.add.at(expected, ids, values.reshape(cols, tokens, f).swapaxes(0, 1))
    sums_after = expected.reshape(rows, vocab, cols, f).swapaxes(1, 2).reshape(rows, cols, vocab * f)
    return _case(b, table, ids, {"g": values}, {"table": sums_after})


def streamed_gradient_program(
    rows: int, cols: int, t: int, f: int, wafer: Wafer, dtype: str, seed: int
) -> Case:
    """Return the program that sends gradients to the west edge: t tokens per row of cores, f elements per
    column."""
    b = new_builder(rows, cols + 1, wafer)
    every, inner = slice(None), slice(1, None)
    vectors, g = (
        b.buffer("vectors", t * cols * f, dtype, (every, 0)),
        b.buffer("g", t * f, dtype, (every, inner)),
    )
    collector, core = b.core_class("collector"), b.core_class("core")
    with collector.loop(cols):
        collector.mov(vectors.dsd(0, t * f, step=t * f), fabric_in(0), dtype=dtype, start="none")
    core.mov(fabric_out(0, "path"), g.dsd(), dtype=dtype)
    b.place(collector, (every, 0))
    b.place(core, (every, inner))
    b.route(0, (every, 0), rx="E", tx="R")
    if cols > 1:
        b.route(0, (every, slice(1, cols)), rx="R", tx="W", switch=Switch([{"rx": "E"}]))
    b.route(0, (every, cols), rx="R", tx="W")
    values = np.random.default_rng(seed).integers(-9, 9, (rows, cols, t * f)).astype(np.float32)
    return Case(b.build(), b.config, {"g": values}, {"vectors": values.reshape(rows, 1, -1)})


def _feeder(b: Builder, rows: int, write: Callable[[CoreClass], None]) -> None:
    """Write the row of feeders north of the table, and its multicast down the columns."""
    feeder, every = b.core_class("feeder"), slice(None)
    write(feeder)
    b.place(feeder, (0, every))
    b.route(IDS, (0, every), rx="R", tx="S")
    b.route(IDS, (slice(1, rows + 1), every), rx="N", tx="RS")
    b.route(IDS, (rows, every), rx="N", tx="R")


def _take_id(k: CoreClass, word: Buffer, wafer: Wafer) -> None:
    """Write the data task of an id: one cycle to receive it, the others to compute where its vector is
    stored."""
    k.mov(word.dsd(), fabric_in(IDS), start="none")
    k.busy(round(wafer.data_task_cycles) - 1)


def _case(b: Builder, table: Array, ids: Array, more: dict[str, Any], expected: dict[str, Any]) -> Case:
    cols = table.shape[1]
    given = {
        "table": table.reshape(*table.shape[:2], -1),
        "ids": np.broadcast_to(ids.astype(np.float32), (1, cols, len(ids))),
    }
    return Case(b.build(), b.config, {**given, **more}, expected)
