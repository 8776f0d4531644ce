"""A PyTorch module of your own, trained on the wafer in both modes.

python examples/run_a_model.py
"""

import torch

from wse_sim import api


class Classifier(torch.nn.Module):
    """Three layers over flat images."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(784, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 10),
        )

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        return torch.nn.functional.cross_entropy(self.layers(images), labels)


def main() -> None:
    """Capture once, run twice."""
    images, labels = torch.zeros(1, 784), torch.zeros(1, dtype=torch.long)
    graph = api.lower(Classifier(), (images, labels), training=True)
    print(f"{len(graph.kernels)} kernels, {graph.parameters:,} parameters")
    for result in api.compare(graph, batch=256):
        if isinstance(result, api.Infeasible):
            print(result.message)
            continue
        print(f"{result.mode}: {result.samples_per_s:,.0f} samples/s, bound by {result.binding}")
        for resource, seconds in sorted(result.bindings.items(), key=lambda item: -item[1])[:3]:
            print(f"    {resource} alone would take {1e3 * seconds:.3f} ms of a step")


if __name__ == "__main__":
    main()
