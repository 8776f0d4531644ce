"""Loaders, limits, samplers, synthetic data, worker processes."""

from __future__ import annotations

import itertools

import pytest
import torch

from wse_sim.cstorch import distributed, runtime
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.utils import data


def numbers(batch_size: int = 2, samples: int = 7, drop_last: bool = True):
    return torch.utils.data.DataLoader(torch.arange(samples), batch_size=batch_size, drop_last=drop_last)


def first(loader, count: int, **how) -> list[list[int]]:
    source = loader.batches(**how)
    found = [batch.tolist() for batch in itertools.islice(source, count)]
    source.close()
    return found


def test_a_loader_calls_its_function_and_starts_again() -> None:
    loader = data.DataLoader(numbers, 3, samples=7)
    assert (len(loader), loader.batch_size) == (2, 3)
    assert first(loader, 5) == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert first(data.DataLoader(numbers, 3), 5, endless=False) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ProgramError, match="no batch"):
        first(data.DataLoader(numbers, 9), 1)


@pytest.mark.parametrize(
    ("limits", "steps"),
    [
        ({"num_steps": 5}, 5),
        ({"num_steps": 5, "max_steps": 4}, 4),
        ({"num_epochs": 2}, 6),
        ({"num_epochs": 2, "steps_per_epoch": 2}, 4),
        ({"num_epochs": 2, "max_steps": 5}, 5),
        ({"num_steps": 5, "max_steps": 8, "initial_step": 6}, 2),
    ],
)
def test_limits_of_steps(limits: dict, steps: int) -> None:
    """A pass has three batches."""
    assert data.DataLoader(numbers, **limits).limit() == steps
    assert data.compute_num_steps(numbers(), **limits) == steps


def test_an_executor_gives_so_many_batches() -> None:
    loader = data.DataLoader(numbers, num_steps=4)
    assert [b.tolist() for b in loader] == [[0, 1], [2, 3], [4, 5], [0, 1]]
    executor = data.DataExecutor(data.DataLoader(numbers), num_steps=2)
    assert len(executor) == 2
    seen = [
        (executor.iteration, executor.user_iteration, executor.is_initial_step, executor.on_final_iteration)
        for _ in executor
    ]
    assert seen == [(0, 1, True, False), (1, 2, False, True)]
    assert len(list(data.DataExecutor(data.DataLoader(numbers)))) == 3

    def stream():
        return iter([torch.ones(1)] * 3)

    executor = data.DataExecutor(data.DataLoader(stream))
    assert len([None for _ in executor]) == 3


def worker_numbers(samples: int):
    state = distributed.get_worker_state()
    sampler = data.DistributedSampler(range(samples), shuffle=False)
    loader = torch.utils.data.DataLoader(torch.arange(samples), batch_size=2, sampler=sampler)
    assert state.streamer
    assert distributed.is_streamer()
    return loader


def test_worker_processes_share_the_data_in_turn() -> None:
    runtime.options().real_workers = True
    # worker 0 has the even numbers, worker 1 the odd ones; batches alternate
    assert first(data.DataLoader(worker_numbers, 8), 6, workers=2) == [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [0, 2],
        [1, 3],
    ]
    assert first(data.DataLoader(worker_numbers, 8), 9, workers=2, endless=False) == [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
    ]


def broken():
    raise ValueError("no such folder")


def test_a_fault_in_a_worker_names_worker_and_line() -> None:
    runtime.options().real_workers = True
    with pytest.raises(
        ProgramError, match=r"input worker 0: .*test_data\.py:\d+: ValueError: no such folder"
    ):
        first(data.DataLoader(broken), 1)
    assert not distributed.is_streamer()
    assert (distributed.num_streamers(), distributed.get_streaming_rank()) == (1, 0)
    assert distributed.get_worker_state() is None


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("samples", [23, 24, 7])
def test_workers_together_see_each_index_once(samples: int, batch_size: int | None) -> None:
    def indices(rank: int, **options):
        with distributed.as_worker(distributed.WorkerState(rank, rank, 2, 0, streamer=True)):
            sampler = data.DistributedSampler(range(samples), seed=4, batch_size=batch_size, **options)
            sampler.set_epoch(3)
            found = list(sampler)
            assert len(found) == len(sampler)
            return [i for b in found for i in b] if batch_size else found

    both = indices(0) + indices(1)
    group = 2 * (batch_size or 1)
    assert len(both) == len(set(both)) == samples // group * group
    padded = indices(0, drop_last=False, pad_last=True) + indices(1, drop_last=False, pad_last=True)
    assert sorted(i for i in padded if i >= 0) == list(range(samples))
    assert len(indices(0, drop_last=False)) == len(indices(1, drop_last=False))


def test_synthetic_samples() -> None:
    spec = {
        "ids": data.TensorSpec((4,), torch.int32, 0, 10),
        "x": data.TensorSpec((2, 3)),
        "one": torch.ones(1),
        "i": torch.tensor,
    }
    made = data.SyntheticDataset(spec, 5)
    assert len(made) == 5
    batch = next(iter(torch.utils.data.DataLoader(made, batch_size=5)))
    assert {k: (tuple(v.shape), v.dtype) for k, v in batch.items()} == {
        "ids": ((5, 4), torch.int32),
        "x": ((5, 2, 3), torch.float32),
        "one": ((5, 1), torch.float32),
        "i": ((5,), torch.int64),
    }
    assert batch["ids"].max() < 10
    assert torch.equal(made[2]["x"], made[2]["x"])
    assert data.infer_batch_size(batch) == 5
    assert data.infer_batch_size([torch.ones(2, 1), torch.ones(3)]) is None


class Counting(data.RestartableDataLoader):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        while True:
            self.at += 1
            yield torch.tensor([self.at])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state_dict, strict=True):
        self.at = state_dict["at"]


def test_a_loader_that_knows_its_position_goes_on() -> None:
    loader = data.DataLoader(Counting)
    first(loader, 3)
    again = data.DataLoader(Counting)
    again.load_state_dict(loader.state_dict())
    assert first(again, 2) == [[4], [5]]
    assert not data.DataLoader(numbers).is_restartable
    with pytest.raises(ProgramError, match="position"):
        data.DataLoader(numbers).state_dict()


def test_ranges_of_steps() -> None:
    schedule = data.Schedule([data.Schedule.Range(0, 10, 4, include_last=True), data.Schedule.Range(20, 23)])
    assert [i for i in range(30) if schedule.match(i)] == [0, 4, 8, 9, 20, 21, 22]
    assert list(schedule.match_after(9)) == [9, 20, 21, 22]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: data.DataLoader(numbers()), "a function"),
        (lambda: data.DataLoader(numbers, num_steps=3, num_epochs=1), "exclude each other"),
        (lambda: data.DataLoader(numbers, num_steps=0), "num_steps=0"),
        (lambda: data.DataExecutor(numbers()), "DataLoader"),
        (lambda: data.DataExecutor(data.DataLoader(numbers), checkpoint_steps=-1), "checkpoint_steps=-1"),
        (lambda: data.DataExecutor(data.DataLoader(numbers), micro_batch_size="tiny"), "tiny"),
        (lambda: data.compute_num_steps(numbers()), "not given"),
        (lambda: data.compute_num_steps(numbers(), 9, max_steps=9), "no step is left"),
        (lambda: data.DistributedSampler(range(2), batch_size=5), "do not fill"),
        (lambda: data.SyntheticDataset({"a": 3}), "int"),
        (lambda: distributed.ClusterConfig(num_csx=0), "num_csx=0"),
        (lambda: distributed.CSConfig(precision_opt_level=5), "precision_opt_level=5"),
        (lambda: distributed.ClusterConfig(job_labels=["a"]), "name=value"),
    ],
)
def test_faults_name_value_and_remedy(make, words) -> None:
    with pytest.raises(ProgramError, match=words):
        make()
