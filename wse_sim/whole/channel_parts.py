"""Graph pass that leaves out concatenations, slices and shuffles of channels: their readers take parts of tensors.

A model that joins, cuts or reorders channels moves no data on the fabric. Every tensor of the model is a list of channels, each
of a tensor that a region makes (:data:`Channels`), and the kernels that read it follow::

    product of [a; b]          W [a; b] = W_a a + W_b b: a product per part, with the columns of the weight in the part's order
    elementwise work, pooling  a kernel per part, depthwise convolutions too
    product read in parts      a product per part, with its rows of the weight (:mod:`wse_sim.whole.channel_labels`)

A reader of some channels of a part has zeros in its weight for the others. Other kernels need a tensor with all channels in order.
If there is none, a concatenation before them stays, or a product before them makes all channels. A concatenation of very many parts stays too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import numpy as np

from wse_sim.graph import Derived, Kernel, KernelGraph, TensorKind
from wse_sim.graph.access import channel_axis, runs_of
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels import family
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.whole.channel_labels import (
    RESIDUAL,
    Places,
    count_of,
    is_gated,
    is_product,
    joins,
    keeps_channels,
    labels_of,
    moves,
    taken_by,
)
from wse_sim.whole.host_part import with_kernels
from wse_sim.whole.parallel_links import plain_priced
from wse_sim.whole.regions.contract import IMAGE_AXES
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.separate_work import SUM, split_product

PART, TERM = ".part", ".term"
"""Name suffixes: of kernels per part of a result, and of products per part of an operand but the last."""
BIAS = "bias"
MOST_PARTS = 12
"""Parts of a concatenation that is left out at most: every layer behind has a product and a stream per part, and a router has 15
colors for streams. Blocks of more layers that read all before them keep their concatenations."""
UNBOUNDED = {"div", "exp", "log", "sqrt", "rsqrt", "reciprocal"}
"""Operators whose result may be no number for a channel that the model does not take."""
Channels = list[tuple[str, int]]
"""The channels of a tensor of the model: each the name of a tensor of the fabric, and its channel."""


def in_parts(graph: KernelGraph, *, trains: bool = False) -> KernelGraph:
    """Return the forward graph in which no kernel joins, cuts or reorders channels, as far as its readers allow; a note states how
    many did. If the graph `trains`, no weight has zeros for channels that are not taken."""
    if not any(map(moves, graph.kernels)):
        return graph
    plain, stays, whole = plain_priced(graph), set[str](), set[str]()
    for kernel in graph.kernels:
        own = tuple(kernel.name + suffix for suffix in (PART, TERM, SUM))
        if kernel.name in plain or any(name.startswith(own) for name in plain):
            stays.add(kernel.name)
    graph = _added_apart(graph, stays)
    while (found := _Parts(graph, stays, whole, trains=trains)).needs != (stays, whole):
        stays, whole = found.needs
    moved = [one.name for one in graph.kernels if moves(one) and one.name not in stays]
    if not moved:
        return graph
    what = (
        f"'{moved[0]}' and {len(moved) - 1} more join, cut or reorder"
        if moved[1:]
        else f"'{moved[0]}' joins, cuts or reorders"
    )
    note = f"{what} channels; on the fabric the weights around do this"
    return with_kernels(graph, _read(graph, found.kernels), found.tensors, note)


def _added_apart(graph: KernelGraph, stays: set[str]) -> KernelGraph:
    """Return the graph in which products of tensors that are joined or cut add no residual: it may come later than the first of
    several parts, and elementwise work has stores for those."""
    tensors, kernels, split = dict(graph.tensors), list[Kernel](), set[str]()
    for kernel in graph.kernels:
        split.update(name for name, _ in kernel.access.slices)
        if keeps_channels(graph, kernel) and not split.isdisjoint(kernel.inputs):
            split.update(kernel.outputs)
        items, slices = items_of(kernel), kernel.access.slices
        is_split = kernel.inputs[:1] and kernel.inputs[0] in split and is_product(graph, kernel)
        if not is_split or RESIDUAL not in items or kernel.name in stays:
            kernels.append(kernel)
            split.update(kernel.outputs if joins(graph, kernel) else ())
            continue
        at = items.index(RESIDUAL)
        ops = ",".join("add" if item == RESIDUAL else item for item in items[at:])
        attrs: dict[str, object] = {"ops": ops, "inputs": 2, "stored": True}
        first, second = split_product(kernel, tensors, ("sums", items[:at]), SUM, attrs)
        if slices:
            between = first.outputs[0]
            sums = ((between, runs_of(np.arange(count_of(graph, kernel.outputs[0])))), *slices[1:])
            first = dataclasses.replace(first, access=dataclasses.replace(first.access, slices=slices[:1]))
            second = dataclasses.replace(second, access=dataclasses.replace(second.access, slices=sums))
        kernels += (first, second)
    return dataclasses.replace(graph, kernels=tuple(kernels), tensors=frozen(tensors))


def _read(graph: KernelGraph, kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels without those that nothing reads: parts that the model leaves out."""
    wanted = {name for kernel in graph.kernels for name in kernel.outputs}
    wanted -= {name for kernel in graph.kernels for name in kernel.inputs}
    found: list[Kernel] = []
    for kernel in reversed(kernels):
        if not wanted.isdisjoint(kernel.outputs):
            wanted.update(kernel.inputs)
            found.append(kernel)
    return found[::-1]


class _Parts:
    """The kernels and tensors of a graph in parts, if kernels named `stays` stay as they are, and tensors named `whole` have all
    channels; `needs` are both with those that were found to."""

    def __init__(self, graph: KernelGraph, stays: set[str], whole: set[str], *, trains: bool) -> None:
        self.graph, self.tensors, self.trains = graph, dict(graph.tensors), trains
        self.needs = {*stays}, {*whole}
        self.makers = {kernel.outputs[0]: kernel for kernel in graph.kernels}
        self.kernels: list[Kernel] = []
        self.channels = {name: self._all(name) for name in graph.tensors}
        self.labels = labels_of(graph, [one for one in graph.kernels if one.name not in stays])
        for kernel in graph.kernels:
            if kernel.name in stays or not self._is_done(kernel):
                self._keep(kernel)

    def _all(self, name: str) -> Channels:
        return [(name, i) for i in range(self._count(name))]

    def _count(self, name: str) -> int:
        shape = self.tensors[name].shape
        return shape[channel_axis(len(shape))] if shape else 1

    def _whole_of(self, channels: Channels) -> str:
        """Return the tensor that has these channels and no others, in order; "" if there is none."""
        name = channels[0][0]
        return name if channels == self._all(name) else ""

    def _need(self, name: str) -> None:
        """Note that a tensor has to have all channels."""
        if self.channels[name] != self._all(name):
            stays, whole = self.needs
            maker = self.makers[name]
            (whole if is_product(self.graph, maker) else stays).add(
                name if is_product(self.graph, maker) else maker.name
            )

    def _orders(self, operands: Sequence[Channels]) -> dict[tuple[str, ...], Places]:
        """Return the tensors that are read together at some places of operands, and for every channel of them the place, -1 for
        none; {} if tensors that are read together have their channels in different orders."""
        places: dict[tuple[str, ...], list[int]] = {}
        for i, channels in enumerate(zip(*operands, strict=True)):
            places.setdefault(tuple(name for name, _ in channels), []).append(i)
        found = {}
        for names, here in places.items():
            ways = [[one[i][1] for i in here] for one in operands]
            sizes = {self._count(name) for name in names}
            if len(sizes) > 1 or any(way != ways[0] for way in ways) or len({*ways[0]}) < len(here):
                return {}
            found[names] = np.full(sizes.pop(), -1)
            found[names][ways[0]] = here
        return found

    # ---- kernels -----------------------------------------------------------------------------------------------------

    def _keep(self, kernel: Kernel) -> None:
        """Take over a kernel that reads whole tensors; note those that have to be whole."""
        taken = taken_by(self.graph, kernel)
        wholes = [self._whole_of([self.channels[name][i] for i in places]) for name, places in taken]
        if all(wholes) and len({name for name, _ in taken}) == len(taken) and not is_gated(kernel):
            kernel = _reading(kernel, [*zip((name for name, _ in taken), wholes, strict=True)])
        else:
            self.needs[0].add(kernel.name)
            for name in kernel.inputs:
                self._need(name)
        self.kernels.append(kernel)

    def _is_done(self, kernel: Kernel) -> bool:
        """Do a kernel in parts, or leave it out; return whether that is possible."""
        (out, *_), taken = kernel.outputs, taken_by(self.graph, kernel)
        operands = [[self.channels[name][i] for i in places] for name, places in taken]
        if joins(self.graph, kernel):
            joined = [one for operand in operands for one in operand]
            is_few = len({name for name, _ in joined}) <= MOST_PARTS
            if is_few and self.tensors[out].kind is not TensorKind.OUTPUT:
                self.channels[out] = joined
                return True
            return False
        if keeps_channels(self.graph, kernel):
            return self._in_channels(kernel, operands)
        return is_product(self.graph, kernel) and self._product(kernel, operands)

    def _in_channels(self, kernel: Kernel, operands: list[Channels]) -> bool:
        """Do a kernel whose result has the channels of its operands, or meets each of them with all channels of another."""
        (out, *_), size = kernel.outputs, self._count(kernel.outputs[0])
        alone = ["" if len(one) == size else self._whole_of(one) for one in operands]
        orders = self._orders([one for one, whole in zip(operands, alone, strict=True) if not whole])
        ops = str(kernel.attrs.get("ops", kernel.attrs.get("function", ""))).split(",")
        is_cut = any((order < 0).any() for order in orders.values())
        is_one = [*map(list, orders.values())] == [[*range(size)]]
        if not orders or (is_cut and (self.trains or not UNBOUNDED.isdisjoint(ops))):
            return False
        if not is_one and self.tensors[out].kind is TensorKind.OUTPUT:
            return False
        for i, (names, order) in enumerate(orders.items()):
            own = iter(names)
            inputs = [one or next(own) for one in alone]
            ends = [*zip((name for name, _ in taken_by(self.graph, kernel)), inputs, strict=True)]
            self._part(kernel, "" if is_one else f"{PART}{i}", ends, order)
        return True

    def _part(self, kernel: Kernel, suffix: str, ends: list[tuple[str, str]], order: Places) -> None:
        """Add the part of a kernel for the channels in `order`; `ends` are the operands and what is read in their place."""
        (out, *_), whole, size = kernel.outputs, self._count(kernel.outputs[0]), len(order)
        kernel = self._without_norm(kernel) if suffix else kernel
        name, rank = f"{kernel.name}{suffix}", len(self.tensors[out].shape)
        dims, attrs = {key: int(value) for key, value in kernel.dims.items()}, dict(kernel.attrs)
        for one in kernel.parameters if suffix else ():
            shape = self.tensors[one].shape
            axis = 0 if kernel.family == "conv2d" else channel_axis(rank) - rank + len(shape)
            if axis in range(len(shape)) and shape[axis] == whole:
                ends.append((one, self._cut(one, axis, order, name)))
        if kernel.family in ("conv2d", "pool2d"):
            dims |= {key: size for key in ("c", "k") if key in dims}
            attrs |= {key: size for key in ("groups",) if key in attrs}
        else:
            of_cols = rank < IMAGE_AXES and dims.get("cols") == whole and kernel.family != "reduce"
            grows = ("elements", "cols" if of_cols else "rows")
            dims |= {key: dims[key] * size // whole for key in grows if key in dims}
        if is_gated(kernel):
            kernel = dataclasses.replace(kernel, family="generated")
            attrs, dims["cols"] = {"ops": "sigmoid,mul", "inputs": 2}, size
            dims["rows"] = dims["elements"] // size
        self.kernels.append(
            dataclasses.replace(
                _reading(kernel, ends),
                name=name,
                outputs=(self._like(out, f"{name}.out", order) if suffix else out,),
                dims=frozen(dims),
                attrs=frozen(attrs),
                flops=kernel.flops * size // whole,
            )
        )

    # ---- products ----------------------------------------------------------------------------------------------------

    def _product(self, kernel: Kernel, operands: list[Channels]) -> bool:
        """Do a product with a product per part of its operand and of its result; return whether that is possible."""
        (out, *_), (x, *added) = kernel.outputs, operands
        made = {one.outputs[0]: i for i, one in enumerate(self.kernels)}
        orders = sorted(self._orders([x]).items(), key=lambda one: made.get(one[0][0], -1))
        parts = {name: order for (name,), order in orders}
        is_cut = any((order < 0).any() for order in parts.values())
        columns = self.tensors[kernel.parameters[0]].shape[1]
        is_known = self._whole_of(x) or (
            columns % len(x) == 0 and (kernel.family == "gemm" or columns == len(x))
        )
        if not parts or not is_known or (is_cut and self.trains) or (added and len(parts) > 1):
            return False
        names, blocks = [name for name, _ in taken_by(self.graph, kernel)], self._blocks(kernel, added)
        if len(blocks) == 1 and self._whole_of(x):
            self.kernels.append(_reading(kernel, [*zip(names, (*parts, *blocks[0][1]), strict=True)]))
            return True
        for i, (rows, sums) in enumerate(blocks):
            part = self._without_norm(kernel)
            if len(blocks) > 1:
                name = f"{kernel.name}{PART}{i}"
                parameters = tuple(self._cut(one, 0, rows, name) for one in part.parameters)
                made_out = self._like(out, f"{name}.out", rows)
                part = dataclasses.replace(part, name=name, parameters=parameters, outputs=(made_out,))
            self._sum(part, parts, sums)
        return True

    def _blocks(self, kernel: Kernel, added: list[Channels]) -> list[tuple[Places, tuple[str, ...]]]:
        """Return the channels of each part of a product's result, with what is added to it: those of the tensors that are added, or
        that are read together."""
        out, *_ = kernel.outputs
        every = np.arange(self._count(out))
        is_whole = out in self.needs[1] or self.tensors[out].kind is TensorKind.OUTPUT
        if not added:
            labels = self.labels[out]
            blocks = [np.flatnonzero(labels == label) for label in dict.fromkeys(labels.tolist())]
            return [(block, ()) for block in ([every] if is_whole else blocks)]
        orders = self._orders(added)
        is_fit = bool(orders) and not any((order < 0).any() for order in orders.values())
        if not is_fit or (is_whole and not self._whole_of(added[0])):
            self._need(taken_by(self.graph, kernel)[1][0])
        return [(order, names) for names, order in orders.items()] if is_fit else [(every, kernel.inputs[1:])]

    def _sum(self, kernel: Kernel, parts: Mapping[str, Places], added: tuple[str, ...]) -> None:
        """Add a product per part of the operand, each with the sum of those before it."""
        items, (out, *_), (weight, *bias) = items_of(kernel), kernel.outputs, kernel.parameters
        own, inner = ("n", "k") if kernel.family == "gemm" else ("k", "c")
        last = len(parts) - 1
        for i, (name, order) in enumerate(parts.items()):
            columns = self._columns(kernel, order)
            is_same = not last and np.array_equal(columns, np.arange(len(columns)))
            rest = [item for item in items if item not in (BIAS, RESIDUAL)] if i == last else []
            fused = ",".join(
                [*(BIAS for _ in bias if i == last), *(RESIDUAL for _ in added), *rest] if last else items
            )
            attrs = {key: value for key, value in kernel.attrs.items() if key != "fused"} | (
                {"fused": fused} if fused else {}
            )
            dims = {**kernel.dims, own: self._count(out)} | ({} if is_same else {inner: len(columns)})
            term = kernel.name if i == last else f"{kernel.name}{TERM}{i}"
            made = dataclasses.replace(
                kernel,
                name=term,
                inputs=(name, *added),
                outputs=(out if i == last else self._like(out, f"{term}.out"),),
                parameters=(
                    weight if is_same else self._cut(weight, 1, columns, term),
                    *(bias if i == last else ()),
                ),
                dims=frozen(dims),
                attrs=frozen(attrs),
                flops=int(family(kernel.family).flops(dims, attrs)),
                access=kernel.access.without_views() if kernel.access.slices else kernel.access,
            )
            self.kernels.append(made)
            added = made.outputs

    def _columns(self, kernel: Kernel, order: Places) -> Places:
        """Return the columns of a weight for the channels of an operand at the places in `order`, -1 for none; a dense layer may read
        all pixels of an image, or all tokens, as one row."""
        (name, taken), *_ = taken_by(self.graph, kernel)
        is_image = len(self.tensors[name].shape) == IMAGE_AXES
        each = int(kernel.dims["k"]) // len(taken) if kernel.family == "gemm" else 1
        found = np.where(order < 0, -1, order * each if is_image else order)
        grown = (
            np.add.outer(found, np.arange(each))
            if is_image
            else np.add.outer(np.arange(each) * len(taken), found)
        )
        is_none = np.broadcast_to((found < 0)[:, None] if is_image else found < 0, grown.shape)
        return np.where(is_none, -1, grown).reshape(-1)

    def _without_norm(self, kernel: Kernel) -> Kernel:
        """Return a convolution with a batch norm folded into its filters and its bias."""
        if kernel.family != "conv2d" or not (eps := Conv2dAttributes.of(kernel.attrs).eps):
            return kernel
        weight, scale, shift = kernel.parameters
        module = scale.rpartition(".")[0]
        derived = {weight: Derived("filters", weight, epsilon=eps, module=module)}
        derived[shift] = Derived("shift", epsilon=eps, module=module)
        for one, how in derived.items():
            name = f"{one}[folded]"
            self.tensors[name] = dataclasses.replace(self.tensors[one], name=name, derived=how)
        attrs = {key: value for key, value in kernel.attrs.items() if key != "eps"}
        parameters = tuple(f"{one}[folded]" for one in derived)
        return dataclasses.replace(kernel, parameters=parameters, attrs=frozen(attrs))

    # ---- tensors -----------------------------------------------------------------------------------------------------

    def _like(self, whole: str, name: str, order: Places | None = None) -> str:
        """Add a tensor like a whole one, or with its channels at the places in `order`; return its name."""
        shape = list(self.tensors[whole].shape)
        if order is not None:
            shape[channel_axis(len(shape))] = len(order)
            for i in np.flatnonzero(order >= 0):
                self.channels[whole][order[i]] = (name, int(i))
        kind = TensorKind.ACTIVATION
        self.tensors[name] = dataclasses.replace(
            self.tensors[whole], name=name, shape=tuple(shape), kind=kind
        )
        return name

    def _cut(self, name: str, axis: int, order: Places, reader: str) -> str:
        """Add a parameter with the places in `order` of another one along an axis, -1 for zeros; return its name."""
        whole = self.tensors[name]
        if np.array_equal(order, np.arange(whole.shape[axis])):
            return name
        runs = runs_of(order)
        first, number, step = runs[0]
        text = f"{first}:{first + number}" if len(runs) == step == 1 and first >= 0 else reader
        found = f"{name}[{':, ' * axis}{text}]"
        shape = (*whole.shape[:axis], len(order), *whole.shape[axis + 1 :])
        derived = Derived("taken", whole.derived or name, taken=((axis, runs),), shape=whole.shape)
        self.tensors[found] = dataclasses.replace(whole, name=found, shape=shape, derived=derived)
        return found


def _reading(kernel: Kernel, ends: Sequence[tuple[str, str]]) -> Kernel:
    """Return a kernel that reads other tensors: `ends` are the old and the new one of every operand in order, then of parameters.
    If it takes several parts of a tensor, it reads the new ones in this order."""
    news: dict[str, list[str]] = {}
    for old, new in ends:
        news.setdefault(old, []).append(new)
    left = {old: chain(these, repeat(these[-1])) for old, these in news.items()}
    access = kernel.access
    if access.slices:
        access = dataclasses.replace(access.without_views(), axes=access.axes)
    several = any(len(these) > 1 for these in news.values())
    names = (
        [new for old, new in ends if old in kernel.inputs]
        if several
        else [news.get(old, [old])[0] for old in kernel.inputs]
    )
    return dataclasses.replace(
        kernel,
        inputs=tuple(dict.fromkeys(names)),
        parameters=tuple(news.get(old, [old])[0] for old in kernel.parameters),
        access=access.renamed(
            lambda old: next(left[old]) if several and old in left else news.get(old, [old])[0]
        ),
    )
