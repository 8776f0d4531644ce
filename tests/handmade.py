"""A transformer made by hand, so that the compiler and the engine can be tested without torch."""

from __future__ import annotations

from wse_sim.graph import Kernel, KernelGraph, Phase, Repeat, Tensor, TensorKind, frozen


class _Maker:
    def __init__(self, seq: int, training: bool) -> None:
        self.kernels: list[Kernel] = []
        self.backward: list[Kernel] = []
        self.tensors: dict[str, Tensor] = {}
        self.seq, self.training = seq, training

    def tensor(self, name: str, *shape: int) -> str:
        self.tensors[name] = Tensor(name, (1, *shape), "fp16", TensorKind.ACTIVATION)
        return name

    def gemm(self, name: str, source: str, k: int, n: int, fused: str = "bias") -> str:
        out = self.tensor(f"{name}.out", self.seq, n)
        weight = f"{name}.weight"
        self.tensors[weight] = Tensor(weight, (n, k), "fp32", TensorKind.PARAMETER, per_sample=False)
        m = self.seq
        common = {"family": "gemm", "parameters": (weight,), "layer": name, "flops": 2 * m * k * n}
        self.kernels.append(
            Kernel(name, dims=frozen(m=m, k=k, n=n), inputs=(source,), outputs=(out,), attrs=frozen(fused=fused),
                   sample_dim="m", saved_bytes=2 * m * k, **common)
        )  # fmt: skip
        if self.training:
            self.backward.append(
                Kernel(f"{name}.dx", dims=frozen(m=m, k=n, n=k), phase=Phase.INPUT_GRADIENT, sample_dim="m",
                       forward=name, **common)
            )  # fmt: skip
            self.backward.append(
                Kernel(f"{name}.dw", dims=frozen(m=k, k=m, n=n), phase=Phase.WEIGHT_GRADIENT, sample_dim="k",
                       forward=name, **common)
            )  # fmt: skip
        return out

    def attention(self, name: str, source: str, heads: int, d: int) -> str:
        out = self.tensor(f"{name}.out", self.seq, heads * d)
        dims = frozen(b=1, heads=heads, kv_heads=heads, q=self.seq, kv=self.seq, d=d)
        flops = 4 * heads * d * self.seq**2
        scores = 2 * heads * self.seq**2
        self.kernels.append(
            Kernel(name, "attention", dims, inputs=(source,), outputs=(out,), sample_dim="b", flops=flops,
                   layer=name, saved_bytes=6 * self.seq * heads * d + scores,
                   attrs=frozen(causal=True, dropout=0.0))
        )  # fmt: skip
        if self.training:
            self.backward.append(
                Kernel(f"{name}.dx", "attention", dims, Phase.INPUT_GRADIENT, sample_dim="b", flops=2 * flops,
                       forward=name, layer=name)
            )  # fmt: skip
        return out


def transformer(
    layers: int = 2, hidden: int = 256, heads: int = 4, seq: int = 64, *, training: bool = True
) -> KernelGraph:
    """Return a chain of blocks: qkv, attention, output, two-layer feed-forward."""
    made = _Maker(seq, training)
    x = "tokens"
    made.tensors[x] = Tensor(x, (1, seq), "int64", TensorKind.INPUT)
    blocks = []
    x = made.gemm("embed", x, 64, hidden, "")
    for layer in range(layers):
        first = len(made.kernels)
        q = made.gemm(f"h.{layer}.qkv", x, hidden, 3 * hidden)
        a = made.attention(f"h.{layer}.attn", q, heads, hidden // heads)
        o = made.gemm(f"h.{layer}.proj", a, hidden, hidden, "bias,residual")
        f = made.gemm(f"h.{layer}.fc", o, hidden, 4 * hidden, "bias,gelu")
        x = made.gemm(f"h.{layer}.out", f, 4 * hidden, hidden, "bias,residual")
        blocks.append(tuple(k.name for k in made.kernels[first:]))
    made.gemm("head", x, hidden, 512, "")
    update = [
        Kernel(f"{k.name}.update", "optimizer", frozen(elements=k.dims["k"] * k.dims["n"]), Phase.UPDATE,
               parameters=k.parameters, attrs=frozen(algorithm="adamw"), forward=k.name)
        for k in made.kernels if k.parameters and training
    ]  # fmt: skip
    return KernelGraph(
        name=f"handmade-{layers}x{hidden}",
        kernels=(*made.kernels, *reversed(made.backward), *update),
        tensors=frozen(made.tensors),
        training=training,
        repeats=(Repeat("h", tuple(blocks)),) if layers > 1 else (),
        facts=frozen(layers=layers, hidden=hidden, heads=heads, seq=seq),
    )
