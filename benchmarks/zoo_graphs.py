"""Graph networks of torch_geometric with fixed edges, for benchmarks/zoo_coverage.py: layers of convolution and whole models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Row = dict[str, Any]
Built = tuple[nn.Module, tuple[Any, ...], Row]
NODES, EDGES, WIDE, OUT, EDGE_WIDE, KINDS = 40, 160, 16, 32, 4, 3

_HOW: dict[str, tuple[tuple[Any, ...], Row]] = {
    "AGNNConv": ((), {}),
    "AntiSymmetricConv": ((WIDE,), {}),
    "APPNP": ((3, 0.1), {}),
    "CGConv": ((WIDE,), {}),
    "ChebConv": ((WIDE, OUT, 3), {}),
    "DirGNNConv": ((), {}),
    "DNAConv": ((WIDE,), {}),
    "FAConv": ((WIDE,), {}),
    "FastRGCNConv": ((WIDE, OUT, KINDS), {}),
    "GatedGraphConv": ((OUT, 2), {}),
    "GCN2Conv": ((WIDE, 0.1), {}),
    "GMMConv": ((WIDE, OUT, EDGE_WIDE, 5), {}),
    "GPSConv": ((WIDE,), {"heads": 2}),
    "HypergraphConv": ((WIDE, OUT), {}),
    "LGConv": ((), {}),
    "PDNConv": ((WIDE, OUT, EDGE_WIDE, 8), {}),
    "PNAConv": ((WIDE, OUT, ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]), {}),
    "RGATConv": ((WIDE, OUT, KINDS), {}),
    "RGCNConv": ((WIDE, OUT, KINDS), {}),
    "SignedConv": ((WIDE, OUT), {"first_aggr": True}),
    "SimpleConv": ((), {}),
    "SSGConv": ((WIDE, OUT, 0.1), {}),
    **dict.fromkeys(
        (
            *("ARMAConv", "ClusterGCNConv", "EGConv", "FeaStConv", "FiLMConv", "GATConv", "GATv2Conv"),
            *("GCNConv", "GENConv", "GeneralConv", "GraphConv", "LEConv", "MFConv", "MixHopConv"),
            *("PointTransformerConv", "ResGatedGraphConv", "SAGEConv", "SGConv", "SuperGATConv"),
            *("TAGConv", "TransformerConv"),
        ),
        ((WIDE, OUT), {}),
    ),
    **dict.fromkeys(("EdgeConv", "GINConv", "GINEConv", "NNConv", "PointNetConv"), ((), {})),
    **dict.fromkeys(("GAT", "GCN", "GIN", "EdgeCNN", "GraphSAGE", "PNA", "PMLP"), ((WIDE, OUT, 2, 7), {})),
    **dict.fromkeys(("AttentiveFP", "GraphUNet", "LightGCN", "LINKX", "SchNet"), ((), {})),
}


def torch_geometric_names() -> list[str]:
    """Convolutions and models with an example here."""
    return sorted(_HOW)


def torch_geometric(name: str, **_: bool) -> Built:
    """Return a convolution or a model on a random graph of 40 nodes and 160 edges, which have values."""
    from torch_geometric import nn as zoo

    torch.manual_seed(0)
    edges = torch.randint(0, NODES, (2, EDGES))
    x, extra = torch.randn(NODES, WIDE), torch.rand(EDGES, EDGE_WIDE)
    kinds = torch.randint(0, KINDS, (EDGES,))
    places = torch.randn(NODES, 3)
    how, named = _HOW[name]
    named = dict(named)
    made: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
        "AttentiveFP": lambda: (
            zoo.AttentiveFP(WIDE, OUT, 7, EDGE_WIDE, 2, 2),
            (x, edges, extra, torch.arange(NODES) // 10),
        ),
        "AntiSymmetricConv": lambda: (zoo.AntiSymmetricConv(WIDE), (x, edges)),
        "DirGNNConv": lambda: (zoo.DirGNNConv(zoo.GCNConv(WIDE, OUT)), (x, edges)),
        "DNAConv": lambda: (zoo.DNAConv(WIDE), (torch.randn(NODES, 3, WIDE), edges)),
        "EdgeConv": lambda: (zoo.EdgeConv(_mlp(2 * WIDE, OUT)), (x, edges)),
        "FAConv": lambda: (zoo.FAConv(WIDE), (x, x.clone(), edges)),
        "FastRGCNConv": lambda: (zoo.FastRGCNConv(*how), (x, edges, kinds)),
        "GCN2Conv": lambda: (zoo.GCN2Conv(*how), (x, x.clone(), edges)),
        "GINConv": lambda: (zoo.GINConv(_mlp(WIDE, OUT)), (x, edges)),
        "GINEConv": lambda: (zoo.GINEConv(_mlp(WIDE, OUT), edge_dim=EDGE_WIDE), (x, edges, extra)),
        "GMMConv": lambda: (zoo.GMMConv(*how), (x, edges, extra)),
        "GPSConv": lambda: (zoo.GPSConv(WIDE, zoo.GCNConv(WIDE, WIDE), heads=2), (x, edges)),
        "GraphUNet": lambda: (zoo.GraphUNet(WIDE, OUT, 7, 2), (x, edges)),
        "LightGCN": lambda: (zoo.LightGCN(NODES, OUT, 2), (edges,)),
        "LINKX": lambda: (zoo.LINKX(NODES, WIDE, OUT, 7, 2), (x, edges)),
        "NNConv": lambda: (zoo.NNConv(WIDE, OUT, _mlp(EDGE_WIDE, WIDE * OUT)), (x, edges, extra)),
        "PDNConv": lambda: (zoo.PDNConv(*how), (x, edges, extra)),
        "PointNetConv": lambda: (zoo.PointNetConv(_mlp(WIDE + 3, OUT)), (x, places, edges)),
        "PointTransformerConv": lambda: (zoo.PointTransformerConv(*how), (x, places, edges)),
        "RGATConv": lambda: (zoo.RGATConv(*how), (x, edges, kinds)),
        "RGCNConv": lambda: (zoo.RGCNConv(*how), (x, edges, kinds)),
        "SignedConv": lambda: (zoo.SignedConv(*how, **named), (x, edges, edges.flip(0))),
        "SchNet": lambda: (
            _Molecule(zoo.SchNet(interaction_graph=_near)),
            (torch.randint(1, 9, (NODES,)), places),
        ),
        "CGConv": lambda: (zoo.CGConv(WIDE, EDGE_WIDE), (x, edges, extra)),
        "PNAConv": lambda: (zoo.PNAConv(*how, deg=torch.tensor([0, 5, 15, 20])), (x, edges)),
        "PNA": lambda: (
            zoo.PNA(
                *how, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 5, 15, 20])
            ),
            (x, edges),
        ),
    }
    module, args = made[name]() if name in made else (getattr(zoo, name)(*how, **named), (x, edges))
    if not any(p.requires_grad for p in module.parameters()):
        module = _AfterProduct(module)
    return module, args, {}


def _mlp(wide: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(wide, OUT), nn.ReLU(), nn.Linear(OUT, out))


def _near(places: torch.Tensor, batch: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fixed edges instead of a search for neighbours, and their lengths."""
    source = torch.arange(EDGES) % NODES
    target = (source + 1 + torch.arange(EDGES) // NODES) % NODES
    return torch.stack([source, target]), (places[source] - places[target]).norm(dim=-1)


class _AfterProduct(nn.Module):
    """A layer without weights after one that has some, so that there is something to train."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(WIDE, WIDE), layer

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.layer(self.linear(x), edges)  # type: ignore[no-any-return]


class _Molecule(nn.Module):
    """A network of atoms of one molecule."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, atoms: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.net(atoms, places)  # type: ignore[no-any-return]
