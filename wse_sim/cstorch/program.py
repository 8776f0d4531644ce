"""The captured step: its graph, the tensors that it reads and writes, its outputs, and its replay.

Replay runs the recorded operators in order on real tensors, below autograd.  In-place operators change the
real storage of parameters and optimizer state, so a step of replay does what a step of eager PyTorch does,
with the same kernels in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch.device import without_wafer_device
from wse_sim.cstorch.record import Recorder
from wse_sim.cstorch.tensors import WaferTensor

if TYPE_CHECKING:
    pass


@dataclass
class Output:
    """A pytree that the step returns: its leaves are indices into the graph's results, tensors, or values."""

    spec: pytree.TreeSpec
    leaves: list[Any]  # ("result", i), ("same", tensor), ("batch", i) or ("value", x)

    def filled(self, results: Sequence[torch.Tensor], batch: Sequence[torch.Tensor]) -> object:
        """Return the pytree for one step."""
        out = []
        for kind, what in self.leaves:
            if kind == "result":
                value = results[what]
                out.append(WaferTensor(value, value, role="output"))
            elif kind == "batch":
                out.append(batch[what])
            else:
                out.append(what)
        return pytree.tree_unflatten(out, self.spec)


@dataclass
class StepProgram:
    """One captured step."""

    name: str
    graph: torch.fx.Graph
    inputs: list[torch.Tensor]  # what fills the placeholders after the batch: tensors from before the step
    batch_size: int  # placeholders that the batch fills
    result: Output
    callbacks: list[tuple[Output, Callable[[Any], None]]]
    operators: int
    written: list[torch.Tensor]
    recorder: Recorder
    notes: list[str] = field(default_factory=list)
    loss: int = -1  # position of the loss among the results
    compiled: Any = None  # compiled.Compiled
    run_graph: Callable[..., Any] | None = None
    last_loss: torch.Tensor | None = None
    watched: Any = None  # watched.Watched
    kept: list[tuple[WaferTensor, int]] = field(
        default_factory=list
    )  # tensors that live on, places among results

    @property
    def state(self) -> list[torch.Tensor]:
        """Tensors that existed before the step and that it writes; they are carried from step to step."""
        return self.written

    @property
    def outputs(self) -> str:
        """Return the results of the graph as a string."""
        return str(next(n for n in reversed(self.graph.nodes) if n.op == "output").args)

    def fingerprint(self) -> str:
        """A hash that is equal for steps that execute the same operators on the same shapes."""
        text = "\n".join(
            f"{n.op} {n.target} {n.args} {n.kwargs}" for n in self.graph.nodes if n.op != "output"
        )
        shapes = ",".join(f"{tuple(t.shape)}{t.dtype}" for t in self.inputs)
        return hashlib.sha256(f"{text}|{shapes}".encode()).hexdigest()

    def replay(self, batch: Sequence[torch.Tensor]) -> tuple[Any, list[tuple[Any, Callable[[Any], None]]]]:
        """Run the step on real tensors; return the step's return value and the callbacks that it requested."""
        if self.run_graph is None:
            self.run_graph = compiled_graph(self.graph)
        given = [t._value if isinstance(t, WaferTensor) else t for t in (*batch, *self.inputs)]
        if getattr(self.run_graph, "is_compiled", False):
            with torch.no_grad(), without_wafer_device():
                results = self.run_graph(*given)
        else:
            with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunction():
                results = self.run_graph(*given)
        self.last_loss = results[self.loss] if self.loss >= 0 else None
        made = [r if isinstance(r, torch.Tensor) else torch.as_tensor(r) for r in results]
        out = self.result.filled(made, batch)
        self._give(made)
        return out, [(asked.filled(made, batch), call) for asked, call in self.callbacks]

    def empty(self, batch: Sequence[torch.Tensor]) -> object:
        """Return the step's result without execution: tensors without values."""
        fakes = [self.recorder.fakes_of_results[i] for i in range(len(self.recorder.fakes_of_results))]
        self._give(fakes)
        return self.result.filled(fakes, batch)

    def _give(self, results: Sequence[torch.Tensor]) -> None:
        """Give values to tensors of the step that the program still uses in the loop."""
        for tensor, place in self.kept:
            tensor._value, tensor._role = results[place], "output"


def compiled_graph(graph: torch.fx.Graph) -> Callable[..., Any]:
    """Return the graph as a Python function (fx frees every tensor after its last use)."""
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return module.forward


def make_program(
    name: str,
    recorder: Recorder,
    batch: Sequence[torch.Tensor],
    result: object,
    kept: Sequence[WaferTensor] = (),
) -> StepProgram:
    """Close a recording: accumulate surviving gradients, choose outputs, end the graph."""
    wanted: list[torch.fx.Node] = []
    fakes: list[torch.Tensor] = []
    position: dict[int, int] = {}
    batch_at = {id(t): i for i, t in enumerate(batch)}
    before = {id(t) for _, t in recorder.inputs}

    def output(tree: object) -> Output:
        leaves, spec = pytree.tree_flatten(tree)
        kinds: list[Any] = []
        for leaf in leaves:
            if not isinstance(leaf, WaferTensor):
                kinds.append(("value", leaf))
            elif id(leaf) in batch_at:
                kinds.append(("batch", batch_at[id(leaf)]))
            elif leaf._role != "trace" or id(leaf) in before:
                kinds.append(("same", leaf))
            else:
                if id(leaf) not in position:
                    position[id(leaf)] = len(wanted)
                    wanted.append(recorder.node_of(leaf))
                    fakes.append(recorder.fake_of(leaf))
                kinds.append(("result", position[id(leaf)]))
        return Output(spec, kinds)

    outcome = output(result)
    loss = -1
    for root in recorder.tape.roots:
        root = recorder.scaled.get(id(root), root)
        if isinstance(root, WaferTensor) and root.numel() == 1 and root._role == "trace":
            output(root)
            loss = position[id(root)]
            break
    callbacks = [(output(values), call) for values, call in recorder.callbacks]
    output(list(kept))
    recorder.graph.output(tuple(wanted))
    recorder.fakes_of_results = fakes
    n = len(batch)
    return StepProgram(
        name=name,
        graph=recorder.graph,
        inputs=[t for _, t in recorder.inputs[n:]],
        batch_size=n,
        result=outcome,
        callbacks=callbacks,
        operators=recorder.operators,
        written=list(recorder.written.values()),
        recorder=recorder,
        loss=loss,
        kept=[(t, position[id(t)]) for t in kept if id(t) in position],
    )


def accumulate(recorder: Recorder, gradient: WaferTensor, name: str) -> WaferTensor:
    """Make a gradient that survives the step a state: the sum so far, zeros before the first step."""
    node = recorder.nodes[id(gradient)]
    value = recorder.fakes[id(gradient)]
    real = torch.zeros(tuple(value.shape), dtype=value.dtype)
    total = WaferTensor(value, real, role="state", name=f"{name}.grad")
    place = recorder.node_of(total)
    # torch fills a new gradient by a copy: the sum comes after it.
    filling = next(
        (u for u in node.users if u.target is torch.ops.aten.copy_.default and u.args[0] is node), node
    )
    with recorder.graph.inserting_after(filling):
        added = recorder.graph.call_function(torch.ops.aten.add_.Tensor, (place, node))
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user not in (added, filling))
    recorder.written[id(total)] = total
    return total
