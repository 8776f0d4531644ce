"""Training of networks of regions: every kernel of a model forward and backward on its region, its loss and its update.

contract.py   what a kind of region that trains is
kinds.py      the kinds by kernel family
products.py   compute cores of products
streamed.py   ... whose gradients stream token by token
shared.py     ... whose rows share an activation
dense.py      dense layers; dense_moving.py their cores for the products
convolution.py convolutions; pixels.py their compute cores; folding.py where the gradients of their images add up
rows.py       work of a core on one token after another
norm.py       layer and RMS norm
pointwise.py  elementwise work and activations
attention.py  softmax attention
slots.py      what a core keeps of samples in flight
collectors.py cores that take sums in and send them in their turn
order.py      in which order gradients leave, and why nothing stops
sums.py       cores that add gradients up, stores in which early ones wait
loss.py       the loss of a sample of several rows
network.py    regions, trees, ways of gradients, sums and loss as one fabric program
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
