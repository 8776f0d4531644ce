"""Measures models by other authors: how many are lowered and run, with the FLOPs of torch's counter.

    python -m benchmarks.zoo_coverage ZOO [NAME ...] [--training] [--families | --shuffled] [--missing | --old] [--most N] [--write]

ZOO is torchvision, timm, transformers, diffusers, monai or torch_geometric; the zoo must be installed, and none is a dependency of the
project.  Each model is built on the device "meta", captured and lowered, run on weight streaming in its phase, and
its FLOPs are compared with those that torch.utils.flop_counter counts while the model itself runs on "meta" (training:
but for weight gradients of grouped convolutions, which torch counts as if all channels met).  Each one
has a process of its own (a fork, so that imports are paid once), a limit of CPU time and one of addresses; a model that
needs more is a row "over the limit".  --families takes one model of each family of timm or transformers: the first by the
size that its name tells (see zoo_models.smallest_first), then by name.

Prints one line of JSON per model and a last one with counts.  --write puts each result into docs/zoo.json as soon as it
is known, from which ``benchmarks.pages`` renders the table of docs/public-models.md; results of other names stay.  Each row has
a hash of the sources that it was measured with: --old measures again what has another.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import logging
import multiprocessing
import random
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    import torch

FILE = Path(__file__).resolve().parents[1] / "docs" / "zoo.json"
SAMPLES = 2
MEMORY_BYTES = 12 << 30  # of addresses, torch and the zoo included
WAIT = 20  # times its CPU time that a model may take on a busy machine
ZOOS = ("torchvision", "timm", "transformers", "diffusers", "monai", "torch_geometric")
SEED = 17  # of the order of --shuffled
OVER = "over the limit"
Shape = Sequence[int]
Built = tuple["torch.nn.Module", tuple[Any, ...], dict[str, Any]]


def torchvision_loads() -> None:
    """Let torchvision be imported next to another build of torch: no model here uses its compiled operators."""
    import torch
    from torch import library

    register = library.register_fake

    def skip(op: object, *args: object, **kwargs: object) -> Callable[..., object]:
        if (
            isinstance(op, str)
            and op.startswith("torchvision::")
            and not hasattr(torch.ops.torchvision, "nms")
        ):
            return lambda function: function
        return register(op, *args, **kwargs)

    library.register_fake = skip


def names_of(zoo: str) -> list[str]:
    """Return all models of a zoo, by name."""
    return list(getattr(_models_of(zoo), f"{zoo}_names")())


def _models_of(zoo: str) -> ModuleType:
    """Return the file that builds a zoo's models."""
    from benchmarks import zoo_graphs, zoo_models

    return zoo_graphs if zoo == "torch_geometric" else zoo_models


def build(zoo: str, name: str, **how: int) -> Built:
    """Return a model on "meta" with example arguments; `whole` with all its layers (transformers)."""
    return getattr(_models_of(zoo), zoo)(name, **how)  # type: ignore[no-any-return]


class _NoModules:
    """Replaces the counter's record of modules, with which some models fail."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _convolution_backward(
    g: Shape,
    x: Shape,
    w: Shape,
    _b: object,
    _s: object,
    _p: object,
    _d: object,
    transposed: bool,
    _o: object,
    groups: int,
    mask: Sequence[bool],
    **_: object,
) -> int:
    """Count the weight gradient of a grouped convolution; torch's formula counts it as if all channels met, so it is
    divided by the groups.
    """
    positions = prod((x if transposed else g)[2:])
    each = 2 * x[0] * positions * prod(w)
    return each * (int(mask[0]) + int(mask[1]))


def counted(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> int:
    """FLOPs that torch counts while the model runs on "meta"; with the backward pass of the sum of its results."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils import _pytree as pytree
    from torch.utils.flop_counter import FlopCounterMode

    module.train(training)
    own = {torch.ops.aten.convolution_backward: _convolution_backward}
    counter = FlopCounterMode(display=False, custom_mapping=own)
    counter.mod_tracker = _NoModules()
    on_meta = any(x.device.type == "meta" for x in [*module.parameters(), *module.buffers()])
    given, named = args, kwargs
    if on_meta:
        given, named = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs))
    torch.backends.mha.set_fastpath_enabled(False)  # whose one operator has no formula
    # So has the kernel of attention that real tensors get.
    with counter, torch.set_grad_enabled(training), sdpa_kernel(SDPBackend.MATH):
        made = module(*given, **named)
        if training:
            leaves = pytree.tree_leaves(dict(made) if isinstance(made, Mapping) else made)
            wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
            weights = [p for p in module.parameters() if p.requires_grad]  # not values inside forward()
            sum((x.float().sum() for x in wanted[1:]), wanted[0].float().sum()).backward(inputs=weights)
    return int(counter.get_total_flops())


def sources() -> str:
    """Return the state of the code that a row was measured with."""
    from wse_sim import result_cache

    return result_cache.sources("wse_sim.frontend", "wse_sim.kernels", "wse_sim.graph")[:8]


_EXAMPLE = ("check the example arguments", "give arguments that pass it", "that forward() takes")
"""How the sentences end that blame the example arguments, which are this benchmark's."""


def _other_ways(name: str) -> Iterator[Iterator[tuple[str, Built]]]:
    """Yield the arguments of hf:, set by set, and the model with all layers, because some models read a layer by its number,
    which two layers do not have; each with what its row says of it.
    """
    from benchmarks import zoo_models

    said = ("", "", "required ones")
    yield zip(said, zoo_models.transformers_doors(name), strict=False)
    yield (("", zoo_models.transformers(name, whole=True)) for _ in range(1))
    yield zip(said[:1], zoo_models.transformers_doors(name, whole=True), strict=False)


def measure(zoo: str, name: str, training: bool) -> dict[str, Any]:
    """Lower and run one model and count its FLOPs."""
    import wse_sim
    from wse_sim.errors import WseError
    from wse_sim.frontend.training import FLOPS_CHECKED

    row: dict[str, Any] = {"zoo": zoo, "name": name, "phase": "training" if training else "inference"}
    row["sources"] = sources()
    try:
        module, args, kwargs = build(zoo, name)
    except Exception as fault:  # the zoo's own: a name that needs weights, a package or a device
        for how in ({"each": 2}, {"whole": True}):  # a layer may refer to another one of its kind
            with contextlib.suppress(Exception):
                module, args, kwargs = build(zoo, name, **how)
                break
        else:
            return {**row, "state": "not built", "why": _first(fault)}
    start = time.process_time()
    try:
        try:
            graph = wse_sim.lower(module, args, kwargs, training=training)
        except WseError as fault:
            if zoo != "transformers":
                raise
            graph, said = None, ""
            for ways in _other_ways(name):
                while graph is None:
                    with contextlib.suppress(WseError):
                        try:
                            said, (module, args, kwargs) = next(ways)
                        except Exception:  # the end, or the zoo's own
                            break
                        graph = wse_sim.lower(module, args, kwargs, training=training)
            if graph is None:
                raise fault
            if said:
                row["inputs"] = said
        row |= {"kernels": len(graph.kernels), "flops": int(graph.total_flops)}
        if training:  # what the capture itself said, without this benchmark
            row["checked"] = graph.facts[FLOPS_CHECKED]
        result = wse_sim.run(graph, mode="weight-streaming", phase=row["phase"], batch=8)
        row["samples_per_s"] = getattr(result, "samples_per_s", None)
        row["state"] = "runs" if row["samples_per_s"] else "does not fit"
    except WseError as fault:
        why = _words(fault)
        return {**row, "state": "not built" if why.endswith(_EXAMPLE) else "refused", "why": why[:400]}
    except Exception as fault:
        return {**row, "state": "fault", "why": _first(fault)}
    row["cpu_s"] = round(time.process_time() - start, 1)
    try:
        row["torch_flops"] = counted(module, args, kwargs, training)
    except Exception as fault:
        row["counter"] = _first(fault)
    if "counter" in row:
        try:
            counting = trained_in_program if training else counted_in_program
            row["torch_flops"] = counting(module, args, kwargs)
            row["counter"] = "over the exported program"
        except Exception as fault:
            row["counter"] = _first(fault)
    if "torch_flops" not in row:
        return row
    if row["torch_flops"] > row["flops"] and "counter" not in row:
        # Products with unused results: the model computes them, a compiled program does not.
        counting = trained_in_program if training else counted_in_program
        row |= {
            "torch_flops": counting(module, args, kwargs),
            "counter": "over the exported program",
        }
    if row["torch_flops"] != row["flops"]:
        row |= {"state": "FLOPs differ", "why": f"{row['flops']} FLOPs, torch counts {row['torch_flops']}"}
    return row


def _grouped_product(x: object, weight: torch.Tensor, *_: object, out_val: torch.Tensor, **__: object) -> int:
    """Count a grouped product, for which torch has no formula: each row is multiplied by one matrix."""
    return 2 * int(out_val.numel()) * int(weight.shape[-2])


def counted_in_program(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """FLOPs by the counter's formulas over the exported program, for models that read values while they run.

    Products of constants alone are not counted: a compiled program has their results.  Nor are products of which only
    the shape is read.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils import _pytree as pytree
    from torch.utils.flop_counter import flop_registry

    from wse_sim.frontend import torch_flops
    from wse_sim.frontend.capture import export

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        program = export(module.eval(), args, kwargs, training=False).run_decompositions()
    total = 0
    leaves = {
        s.arg.name for s in program.graph_signature.input_specs if s.kind.name in ("PARAMETER", "USER_INPUT")
    }
    of_step: set[torch.fx.Node] = set()  # what follows from arguments or weights
    read = torch_flops.read_by(program.graph.output_node().all_input_nodes)
    for node in program.graph.nodes:
        if node not in read:
            continue
        if node.name in leaves or not of_step.isdisjoint(node.all_input_nodes):
            of_step.add(node)
        formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if "grouped_mm" in str(node.target):
            formula = _grouped_product
        if node.op == "call_function" and formula is not None and node in of_step:
            given = pytree.tree_map(
                lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x, (node.args, node.kwargs)
            )
            total += formula(*given[0], **given[1], out_val=node.meta["val"])
    return int(total)


def trained_in_program(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> int:
    """FLOPs of a step by the counter's formulas over the exported program and its backward pass, on "meta".

    The program is decomposed first: its writes in place have no gradient there.
    """
    from wse_sim.frontend import torch_flops
    from wse_sim.frontend.capture import export

    program = export(module, args, kwargs, training=True).run_decompositions({})
    return torch_flops.counted_program(program, lambda name: True).total


def _first(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {_words(fault)[:300]}"


def _words(fault: BaseException) -> str:
    """Return one line, with files named relative to their package, because the location of packages on a machine does
    not matter.
    """
    return re.sub(r"\S*/site-packages/", "", " ".join(str(fault).split()))


def _child(zoo: str, name: str, training: bool, limit_s: float, end: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (ceil(limit_s), ceil(limit_s) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    sys.setrecursionlimit(10_000)
    row = {"zoo": zoo, "name": name, "phase": "training" if training else "inference"}
    try:
        end.send(measure(zoo, name, training))
    except MemoryError:
        end.send({**row, "state": OVER, "why": f"over {MEMORY_BYTES >> 30} GiB of addresses"})
    except BaseException as fault:
        end.send({**row, "state": "fault", "why": _first(fault)})


def in_process(zoo: str, name: str, training: bool, limit_s: float) -> dict[str, Any]:
    """:func:`measure` in its own process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(zoo, name, training, limit_s, there), daemon=True)
    process.start()
    there.close()
    row: dict[str, Any] = {"zoo": zoo, "name": name, "phase": "training" if training else "inference"}
    try:
        row = here.recv() if here.poll(WAIT * limit_s) else row
    except EOFError:
        process.join(10)
    process.kill()
    process.join()
    if "state" not in row:
        over = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        row |= (
            {"state": OVER, "why": f"over {limit_s:g} s of CPU time"}
            if over
            else {"state": "fault", "why": "the process died"}
        )
    return row


def versions(zoo: str) -> dict[str, str]:
    """Return the versions of torch and of the zoo."""
    return {name: importlib.metadata.version(name).partition("+")[0] for name in ("torch", zoo)}


def known_rows(file: Path, zoo: str, phase: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a file of results, by name."""
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return dict(data.get(zoo, {}).get("rows", {}).get(phase, {}))


def write(file: Path, row: Mapping[str, Any], total: int, rule: str) -> None:
    """Put a row into a file of results instead of an older one of the same model and phase, with the rule that chose it."""
    data = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    part = data.setdefault(row["zoo"], {"rows": {}})
    part |= {"date": datetime.date.today().isoformat(), "versions": versions(row["zoo"]), "names": total}
    part["sources"] = row.get("sources", part.get("sources", ""))
    kept = {
        k: row[k] for k in ("state", "why", "inputs", "counter", "checked", "sources", "commit") if k in row
    } | {"rule": rule}
    part["rows"].setdefault(row["phase"], {})[row["name"]] = kept
    part["rows"] = {phase: dict(sorted(found.items())) for phase, found in sorted(part["rows"].items())}
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(dict(sorted(data.items())), indent=1) + "\n", encoding="utf-8")
    beside.replace(file)


def chosen(options: argparse.Namespace, known: Sequence[str]) -> tuple[str, list[str]]:
    """The rule by which names are chosen, and the names in their order."""
    from benchmarks import zoo_models

    if options.names:
        return "by name", list(options.names)
    if options.families:
        return "each family's smallest", zoo_models.one_of_each_family(options.zoo)
    if options.shuffled:
        return f"in random order (seed {SEED})", random.Random(SEED).sample(list(known), len(known))
    return "all", list(known)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure models of one zoo."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo_coverage", description=__doc__.partition("\n")[0])
    parser.add_argument("zoo", choices=ZOOS)
    parser.add_argument("names", nargs="*", help="models; all unless given")
    parser.add_argument("--training", action="store_true", help="phase training instead of inference")
    parser.add_argument(
        "--families", action="store_true", help="one model of each family, the smallest by its name"
    )
    parser.add_argument("--shuffled", action="store_true", help="in an order that chance fixed once")
    parser.add_argument("--missing", action="store_true", help="only models without a row in the file")
    parser.add_argument("--old", action="store_true", help="only models without a row of these sources")
    parser.add_argument("--most", type=int, default=0, help="so many models at most")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of CPU time per model")
    parser.add_argument("--write", action="store_true", help="put each result into the file at once")
    parser.add_argument("--file", type=Path, default=FILE, help="the file of results")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    torchvision_loads()
    known = names_of(options.zoo)
    rule, names = chosen(options, known)
    there = known_rows(options.file, options.zoo, "training" if options.training else "inference")
    if options.missing:
        names = [name for name in names if name not in there]
    if options.old:
        names = [name for name in names if there.get(name, {}).get("sources") != sources()]
    counts: Counter[str] = Counter()
    for name in names[: options.most or None]:
        row = in_process(options.zoo, name, options.training, options.limit)
        counts[row["state"]] += 1
        print(json.dumps(row), flush=True)
        if options.write:
            write(options.file, row, len(known), f"{rule}, limit {options.limit:g} s")
    print(json.dumps({"versions": versions(options.zoo), "counts": dict(counts)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
