"""The update of weights.  Each weight gets one optimizer kernel, attached to the first forward kernel that uses it.

If kernels compute in 16 bits, their weights are a copy of the fp32 master weights; the update rewrites this
copy. The gradients of a weight that several kernels use (tied weights) are summed before its update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wse_sim.graph import Kernel, Phase, Tensor, TensorKind, frozen
from wse_sim.graph.optimizers import optimizer_named
from wse_sim.kernels.contract.tape import gradient_name


def update_kernels(
    forward: Iterable[Kernel], tensors: dict[str, Tensor], parts: Mapping[str, list[str]], optimizer: str
) -> list[Kernel]:
    """Return kernels that sum shared gradients, then update kernels; `parts` has the gradients of each
    weight.

    New gradient tensors are added to `tensors`.
    """
    sums: list[Kernel] = []
    updates: list[Kernel] = []
    done: set[str] = set()
    for kernel in forward:
        fresh = [p for p in kernel.parameters if p in parts and p not in done]
        if not fresh:
            continue
        done.update(fresh)
        gradients = tuple(_whole(kernel, p, parts[p], tensors, sums) for p in fresh)
        elements = sum(tensors[p].elements for p in fresh)
        updates.append(
            Kernel(
                name=f"{kernel.name}.update",
                family="optimizer",
                dims=frozen(elements=elements),
                phase=Phase.UPDATE,
                inputs=gradients,
                parameters=tuple(fresh),
                attrs=frozen(
                    algorithm=optimizer,
                    state_bytes=optimizer_named(optimizer).state_bytes * elements,
                    copy=kernel.dtype != "fp32",
                ),
                layer=kernel.layer,
                source=kernel.source,
                dtype="fp32",
                forward=kernel.name,
            )
        )
    return [*sums, *updates]


def _whole(
    kernel: Kernel, parameter: str, parts: list[str], tensors: dict[str, Tensor], sums: list[Kernel]
) -> str:
    if len(parts) == 1:
        return parts[0]
    weight = tensors[parameter]
    total = gradient_name(parameter, tensors)
    tensors[total] = Tensor(total, weight.shape, weight.dtype, TensorKind.WEIGHT_GRADIENT, False)
    sums.append(
        Kernel(
            name=f"{kernel.name}.dw_sum.{parameter.rpartition('.')[2]}",
            family="elementwise",
            dims=frozen(elements=weight.elements),
            phase=Phase.WEIGHT_GRADIENT,
            inputs=tuple(parts),
            outputs=(total,),
            attrs=frozen(ops=",".join(["add"] * (len(parts) - 1)), inputs=len(parts)),
            layer=kernel.layer,
            dtype=kernel.dtype,
            forward=kernel.name,
        )
    )
    return total
