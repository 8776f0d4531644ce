"""Batches: loaders in workers, the executor that drives a loop, samplers, synthetic data."""

from wse_sim.cstorch.batches import infer_batch_size
from wse_sim.cstorch.utils.data.data_executor import DataExecutor, MbsSetting, MicroBatchSize
from wse_sim.cstorch.utils.data.dataloader import DataLoader, RestartableDataLoader
from wse_sim.cstorch.utils.data.sampler import DistributedSampler
from wse_sim.cstorch.utils.data.synthetic import SampleSpec, SyntheticDataset, TensorSpec
from wse_sim.cstorch.utils.data.utils import Schedule, compute_num_steps

__all__ = [
    "DataExecutor",
    "DataLoader",
    "DistributedSampler",
    "MbsSetting",
    "MicroBatchSize",
    "RestartableDataLoader",
    "SampleSpec",
    "Schedule",
    "SyntheticDataset",
    "TensorSpec",
    "compute_num_steps",
    "infer_batch_size",
]
