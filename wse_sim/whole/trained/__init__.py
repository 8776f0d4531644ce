"""Training of networks of regions: forward and backward passes, loss and updates of all kernels of a model.

contract.py      the interface of a trainable kind of region
kinds.py         the kinds by kernel family; frozen layers have those of inference
products.py      compute cores of products
dense.py         dense layers; dense_inlets.py has the cores next to their products
convolution.py   convolutions; pixels.py has their compute cores, image_gradient.py the sums of their image gradients
rows.py          slots of a core for tokens and samples
norm.py          layer and RMS norm
pointwise.py     elementwise work and activations
attention.py     softmax attention
attention_bands.py   the same in bands of rows, each with some of the heads
leading_rows.py  rows of parameters before the tokens, and the first token alone
order.py         the order in which gradients leave, and why it is free of deadlocks
sums.py          cores that add gradients, and stores that buffer early ones
loss.py          the loss of a sample of several rows
network.py       regions, trees, gradient routes, sums and loss as one fabric program
"""

from wse_sim.whole.trained.contract import Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.kinds import TRAINED, trained_region_of
from wse_sim.whole.trained.network import TrainedNetwork, trained_network

__all__ = [
    "TRAINED",
    "Batch",
    "TrainedKind",
    "TrainedNetwork",
    "TrainedPorts",
    "trained_network",
    "trained_region_of",
]
