"""A weight-streaming plan as one program, with conversion of its inputs and outputs.

Symbols: token m of T is in lane ``m div (R t)``, row ``(m div t) mod R``; feature k of a layer in column ``k
div f``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.units import BYTES_PER_WAVELET
from wse_sim.whole.coverage import check_streamed
from wse_sim.whole.regions.contract import PAIR
from wse_sim.whole.streaming.common import QUEUES, Cores
from wse_sim.whole.streaming.edges import write_edges
from wse_sim.whole.streaming.layout import EdgeStream, Pass, StreamedLayout, lay_out
from wse_sim.whole.streaming.products import route_sums, write_loss, write_product
from wse_sim.whole.streaming.weights import route_weight_gradients, write_weight_gradient

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StreamedProgram:
    """A plan as one program; `layout.passes` are the passes that it includes."""

    plan: WeightStreamingPlan
    layout: StreamedLayout
    program: Program
    config: FabricConfig

    @property
    def edge_bytes_per_s(self) -> float:
        """Capacity of all edge streams: those of one link each."""
        wafer = self.plan.wafer
        return BYTES_PER_WAVELET * len(self.layout.streams) * wafer.clock_hz / wafer.wavelet_cycles

    def inputs(
        self, weights: Mapping[str, Floats], values: Floats, labels: NDArray[np.int64] | None = None
    ) -> dict[str, Floats]:
        """Return the input buffers of a run by name, from parameters by name, rows of samples (T, K), and
        labels (T,) in training."""
        lay = self.layout
        out = {"x0": self.laid(values, lay.layers[0].inputs)}
        ones = np.ones((lay.area.rows, lay.area.cols, lay.apart), np.float32)
        out["ones"] = ones
        if lay.is_training and labels is not None:
            wanted = np.zeros((lay.tokens, lay.layers[-1].n), np.float32)
            wanted[np.arange(lay.tokens), labels] = 1
            out["wanted"] = self.laid(wanted, lay.layers[-1].outputs)
            real = np.ones((lay.tokens, lay.cols * lay.layers[-1].outputs), np.float32)
            out["real"] = self.laid(real, lay.layers[-1].outputs)
        for stream in lay.streams:
            parts = [part for one in lay.passes if one.is_product for part in _sent(lay, one, weights)]
            words = [
                np.ascontiguousarray(part[:, list(stream.columns)].astype(np.float16)).reshape(-1)
                for part in parts
            ]
            out[f"weights {stream.number}"] = np.concatenate(words).view(np.float32)[None, None]
        return out

    def laid(self, values: Floats, size: int) -> Floats:
        """Return values (T, features) as (rows, cols, size x apart) of the cores, padded with zeros."""
        lay = self.layout
        wide = np.zeros((lay.lanes * lay.area.rows * lay.held, lay.cols * size), np.float32)
        wide[: len(values), : values.shape[1]] = values
        cells = wide.reshape(lay.lanes, lay.area.rows, lay.held, lay.cols, size).transpose(1, 0, 3, 4, 2)
        out = np.zeros((*cells.shape[:4], lay.apart), np.float32)
        out[..., : lay.held] = cells
        return out.reshape(lay.area.rows, lay.area.cols, size * lay.apart)

    def gathered(self, held: Floats, features: int) -> Floats:
        """Return (T, features) from the buffers of the cores; the inverse of :meth:`laid`."""
        lay = self.layout
        cells = held.reshape(lay.area.rows, lay.lanes, lay.cols, -1, lay.apart)[..., : lay.held]
        return cells.transpose(1, 0, 4, 2, 3).reshape(-1, lay.cols * cells.shape[3])[: lay.tokens, :features]

    def gradients(self, result: FabricResult) -> dict[str, Floats]:
        """Return summed gradients by parameter, in the fp16 precision of the host streams."""
        lay = self.layout
        found: dict[str, Floats] = {}
        read = {
            stream.number: np.ascontiguousarray(result.read(f"gradients {stream.number}").reshape(-1)).view(
                np.float16
            )
            for stream in lay.streams
        }
        done = dict.fromkeys(read, 0)
        for one in lay.passes:
            if one.kind != "weights":
                continue
            layer = one.layer
            blocks = [(layer.outputs, 1)] if layer.bias else []
            parts = []
            for size, times in [*blocks, (one.rest, one.rounds)]:
                wide = np.zeros((times, lay.cols, size), np.float32)
                for stream in lay.streams:
                    wide[:, list(stream.columns)] = _taken(read, done, stream, size, times)
                parts.append(wide.reshape(times, -1))
            if layer.bias:
                found[layer.bias] = parts[0][0, : layer.n]
            found[layer.weight] = parts[-1][: layer.n, : layer.k]
        return found


def _taken(
    read: Mapping[int, NDArray[np.float16]], done: dict[int, int], stream: EdgeStream, size: int, times: int
) -> NDArray[np.float16]:
    """Return the next block of a stream: (times, its columns, size)."""
    padded, count = PAIR * ceil_div(size, PAIR), len(stream.columns)
    first = done[stream.number]
    done[stream.number] = first + times * count * padded
    block = read[stream.number][first : done[stream.number]]
    return block.reshape(times, count, padded)[..., :size]


def _sent(layout: StreamedLayout, one: Pass, weights: Mapping[str, Floats]) -> list[Floats]:
    """Return the blocks of a product in order: (rounds, columns of a lane, elements of a column)."""
    layer, cols = one.layer, layout.cols
    matrix = weights[layer.weight] if one.kind == "forward" else weights[layer.weight].T
    wide = np.zeros((one.rounds, cols * one.rest), np.float32)
    wide[: matrix.shape[0], : matrix.shape[1]] = matrix
    blocks = [_paired(wide.reshape(one.rounds, cols, one.rest)[list(one.turns())])]
    if one.kind == "forward" and layer.bias:
        bias = np.zeros((1, cols * one.owned), np.float32)
        bias[0, : layer.n] = weights[layer.bias]
        blocks.insert(0, _paired(bias.reshape(1, cols, one.owned)))
    return blocks


def _paired(values: Floats) -> Floats:
    """Pad the last axis to whole words."""
    short = values.shape[-1] % PAIR
    return np.concatenate([values, np.zeros((*values.shape[:-1], short), np.float32)], axis=-1)


def streamed_program(plan: WeightStreamingPlan, passes: int | None = None) -> StreamedProgram:
    """Build the program of the complete step, or of its first `passes`.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    check_streamed(plan)
    layout = lay_out(plan)
    if passes is not None:
        layout = replace(layout, passes=layout.passes[:passes])
    wafer, cluster = plan.wafer, plan.cluster
    rate = min(wafer.io_bytes_per_s, cluster.swarmx_bytes_per_s, cluster.memoryx_bytes_per_s)
    word_cycles = BYTES_PER_WAVELET * len(layout.streams) * wafer.clock_hz / rate
    config = FabricConfig.from_wafer(wafer, io_milli=max(1000, round(1000 * word_cycles)))
    b = Builder(wafer.rows, wafer.cols, config)
    for queue, colors in QUEUES.items():
        for color in colors:
            b.input_queue(color, queue)
    cores = Cores(b, wafer, layout)
    for number, (kind, cells) in enumerate(cores.kinds().items()):
        core = b.core_class(f"cores {number}")
        for one in layout.passes:
            if one.is_product:
                write_product(cores, core, kind, one)
            elif one.kind == "loss":
                write_loss(cores, core, one)
            else:
                write_weight_gradient(cores, core, kind, one)
        cores.place(core, cells)
    route_sums(cores)
    if any(one.kind == "weights" for one in layout.passes):
        route_weight_gradients(cores)
    write_edges(b, layout)
    return StreamedProgram(plan, layout, b.build(), config)
