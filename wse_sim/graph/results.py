"""How many bytes of a model's results leave the wafer for the host.

In training that is the loss. In inference a loop that serves or evaluates seldom needs all results: GPT-2
small produces 103 MB of logits from 4 kB of tokens, and one row of them, 0.1 MB, determines the next token.
"""

from __future__ import annotations

from wse_sim.errors import ModelError
from wse_sim.graph.kernel_graph import KernelGraph, Tensor, TensorKind
from wse_sim.units import counted

EVERYTHING, LAST, LOSS, TOP = "everything", "last", "loss", "top:"
LOSS_BYTES = 4  # fp32, one a sample
INDEX_BYTES = 4  # int32, next to every value of a choice
ROWS_OF_SAMPLES = 3  # dimensions: samples, positions, values
TOKEN_DTYPES = ("int32", "int64")


def results_of(graph: KernelGraph) -> tuple[Tensor, ...]:
    """The tensors that the forward pass of `graph` returns."""
    return tuple(tensor for tensor in graph.tensors.values() if tensor.kind is TensorKind.OUTPUT)


def takes_tokens(graph: KernelGraph) -> bool:
    """Whether an input is integers."""
    inputs = (tensor for tensor in graph.tensors.values() if tensor.kind is TensorKind.INPUT)
    return any(tensor.dtype in TOKEN_DTYPES for tensor in inputs)


def what_is_sent(graph: KernelGraph, asked: str | None) -> str:
    """`asked`, or by default the results that a serving or evaluation loop needs.

    The default is the loss in training; in inference the last position if the model takes tokens, else
    everything.

    Raises
    ------
    ModelError
        If `asked` is no name of results.
    """
    if asked is not None:
        sent_bytes(graph, asked)
    if graph.training:
        return LOSS
    if asked is not None:
        return asked
    return LAST if takes_tokens(graph) else EVERYTHING


def sent_bytes(graph: KernelGraph, what: str) -> float:
    """Bytes that leave the wafer for the samples that `graph` is stated for.

    `what` is "everything"; "last", of tensors (samples, positions, values) the last position; "top:K", of every
    position the K largest values, each with its index; or "loss", one number a sample.  Tensors of more dimensions are
    sent with everything alone: they are caches of keys and values, which the next token reads on the wafer, or images.

    Raises
    ------
    ModelError
        If `what` is none of these, or K is not a positive number.
    """
    if what == LOSS:
        return float(LOSS_BYTES * graph.samples)
    if what == EVERYTHING:
        return float(sum(tensor.bytes for tensor in results_of(graph)))
    found = [tensor for tensor in results_of(graph) if len(tensor.shape) <= ROWS_OF_SAMPLES]
    if what == LAST:
        return float(sum(tensor.bytes / _positions(tensor) for tensor in found))
    if what.startswith(TOP) and (most := counted(what[len(TOP) :])):
        return float(sum(_largest_bytes(tensor, most) for tensor in found))
    raise ModelError(
        f"send '{what}' is not known; use '{EVERYTHING}', '{LAST}', '{LOSS}' or '{TOP}K', e.g. '{TOP}5'"
    )


def note_of(graph: KernelGraph, what: str, asked: str | None = None) -> tuple[str, ...]:
    """A sentence where less leaves the wafer than the model returns, or other results than `asked`."""
    if asked is not None and asked != what:
        return (f"send={asked} has no effect in training: {what} leaves the wafer",)
    whole, sent = (sent_bytes(graph, one) / graph.samples for one in (EVERYTHING, what))
    if graph.training or sent >= whole:
        return ()
    return (
        f"of {whole / 1e6:.3g} MB of results a sample {sent / 1e6:.3g} MB leave the wafer (send={what}; "
        f"send={EVERYTHING} sends all)",
    )


def _positions(tensor: Tensor) -> int:
    """Positions per sample: the second dimension of a tensor with three, else 1."""
    return tensor.shape[1] if len(tensor.shape) == ROWS_OF_SAMPLES else 1


def _largest_bytes(tensor: Tensor, most: int) -> float:
    values = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.elements // max(1, values)
    return rows * min(most, values) * (tensor.bytes / max(1, tensor.elements) + INDEX_BYTES)
