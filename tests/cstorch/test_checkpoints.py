"""Checkpoint files: round trips, lazy reads, other readers, faults, and files that are complete or absent."""

from __future__ import annotations

import collections
import os
import signal
from functools import partial
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.children import start_child, status_of
from tests.generated import examples
from wse_sim.cstorch import checkpoint, optim, simulated
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.saver import PyTorchH5Saver


def state() -> dict:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    optim.lr_scheduler.LinearLR(optimizer, 0.1, 0.0, 10)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "global_step": 40,
        "half": torch.randn(5).bfloat16(),
        "mask": torch.tensor([True, False]),
        "nested": (1, [2.5, None, "text"], {3: torch.arange(3)}),
        "__metadata__": [{"version": "2.1.1", "params": {"a/b": {"c.d": 1}}}],
    }


def same(a, b) -> None:
    assert type(a) is type(b) or (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert torch.equal(a.detach(), b.detach().clone())
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("where", [None, "cpu"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_round_trip(tmp_path, where, compression) -> None:
    wanted = state()
    checkpoint.save(wanted, tmp_path / "deep" / "c.mdl", compression=compression)
    found = checkpoint.load(tmp_path / "deep" / "c.mdl", map_location=where)
    same(wanted, found)
    assert isinstance(found["model"], collections.OrderedDict)
    lazy = isinstance(found["half"], checkpoint.LazyTensor)
    assert lazy == (where is None)


def test_handles_load_into_modules_and_optimizers_and_into_torchs_files(tmp_path) -> None:
    wanted = state()
    checkpoint.save(wanted, tmp_path / "c.mdl")
    found = checkpoint.load(tmp_path / "c.mdl")
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model.load_state_dict(found["model"])
    same(wanted["model"], model.state_dict())
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(found["optimizer"])
    same(wanted["optimizer"]["state"], optimizer.state_dict()["state"])
    assert int(found["nested"][2][3][2]) == 2
    assert found["half"].float().numpy().shape == (5,)
    torch.save(found, tmp_path / "t.pt")
    same(wanted["model"], torch.load(tmp_path / "t.pt", weights_only=True)["model"])
    same(wanted["model"], checkpoint.load(tmp_path / "t.pt")["model"])


def test_any_hdf5_reader_opens_it(tmp_path) -> None:
    wanted = state()
    checkpoint.save(wanted, tmp_path / "c.mdl")
    with h5py.File(tmp_path / "c.mdl") as file:
        np.testing.assert_array_equal(file["model.0.weight"][()], wanted["model"]["0.weight"].numpy())
        assert file["half"].dtype == np.uint16
        assert file["half"].attrs["dtype"] == "bfloat16"
        # bfloat16 is the upper half of float32
        upper = (file["half"][()].astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(upper, wanted["half"].float().numpy())
        assert file.attrs["version"] == checkpoint.VERSION


def test_big_tensors_are_chunked_and_tied_ones_stored_once(tmp_path) -> None:
    weight = torch.randn(1024, 1024)
    checkpoint.save({"a": weight, "b": weight, "view": weight.t()}, tmp_path / "c.mdl")
    with h5py.File(tmp_path / "c.mdl") as file:
        rows, columns = file["a"].chunks
        assert columns == 1024
        assert rows * columns * 4 == checkpoint.CHUNK_BYTES
        assert file["a"] == file["b"]
        assert file["view"] != file["a"]
    assert torch.equal(checkpoint.load(tmp_path / "c.mdl")["view"] + 0, weight.t())


leaves = st.one_of(
    st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=5)
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=8,
)


@examples(25)
@given(tree=trees)
def test_every_structure_of_plain_values_comes_back(tmp_path_factory, tree) -> None:
    path = tmp_path_factory.mktemp("c") / "c.mdl"
    checkpoint.save({"x": tree, "t": torch.ones(1)}, path)
    same(tree, checkpoint.load(path)["x"])


def test_written_in_the_background_the_state_is_that_of_the_call(tmp_path) -> None:
    weight = torch.zeros(1000)
    future = checkpoint.save({"w": weight}, tmp_path / "c.mdl", asynchronous=True)
    weight.fill_(7.0)
    assert future.result() == tmp_path / "c.mdl"
    assert not checkpoint.load(tmp_path / "c.mdl", "cpu")["w"].any()
    # The copy stops the run, the writing hides behind 10 s of training: 0.5 + max(0, 12 - 10)
    assert checkpoint.exposed_seconds(12.0, 10.0, 0.5) == 2.5
    assert checkpoint.exposed_seconds(8.0, 10.0, 0.5) == 0.5


def test_a_killed_process_leaves_the_old_file_or_none(tmp_path) -> None:
    """The process dies between writing and renaming, the worst moment."""
    checkpoint.save({"w": torch.ones(2)}, tmp_path / "old.mdl")

    def die(name: str) -> None:
        checkpoint.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        checkpoint.save({"w": torch.zeros(2)}, tmp_path / name)

    for name in ("old.mdl", "new.mdl"):
        assert status_of(start_child(partial(die, name))) == -signal.SIGKILL
    assert checkpoint.load(tmp_path / "old.mdl", "cpu")["w"].tolist() == [1.0, 1.0]
    assert not (tmp_path / "new.mdl").exists()


def test_random_numbers_go_on_after_a_resume(tmp_path) -> None:
    torch.manual_seed(5)
    torch.rand(3)
    checkpoint.save({"w": torch.ones(1)}, tmp_path / "c.mdl")
    wanted = torch.rand(4)
    torch.manual_seed(5)
    checkpoint.load(tmp_path / "c.mdl")
    torch.rand(2)
    checkpoint.apply_random_state()
    assert torch.equal(torch.rand(4), wanted)
    checkpoint.load(tmp_path / "c.mdl")
    torch.manual_seed(6)  # the program decides otherwise
    checkpoint.apply_random_state()
    assert not torch.equal(torch.rand(4), wanted)


def test_single_tensors_for_converters(tmp_path) -> None:
    saver, path = PyTorchH5Saver(), tmp_path / "c.mdl"
    tensors, spec = saver.flatten_state_dict({"a": {"b": torch.ones(2)}})
    for name, tensor in tensors.items():
        saver.save_tensor(path, name, tensor)
    saver.save_tensor(path, "a.b", torch.zeros(2))
    saver.save_spec(path, spec)
    assert saver.is_valid_checkpoint(path)
    assert saver.extract_version(path).ckpt_version == checkpoint.VERSION
    assert saver.tensor_names(path) == ["a.b"]
    same(saver.load(path), {"a": {"b": torch.zeros(2)}})
    torch.save({}, tmp_path / "t.pt")
    assert saver.extract_version(tmp_path / "t.pt") is None
    with pytest.raises(ProgramError, match="no tensor 'c'"):
        saver.load_tensor(path, "c")


def test_faults_are_sentences(tmp_path) -> None:
    (tmp_path / "text").write_text("no checkpoint")
    checkpoint.save({"w": torch.ones(10)}, tmp_path / "c.mdl")
    (tmp_path / "cut.mdl").write_bytes((tmp_path / "c.mdl").read_bytes()[:900])
    for call, words in (
        (lambda: checkpoint.load(tmp_path / "none"), "no file"),
        (lambda: checkpoint.load(tmp_path / "text"), "no checkpoint"),
        (lambda: checkpoint.load(tmp_path / "cut.mdl"), "damaged"),
        (lambda: checkpoint.save({"f": {"g": print}}, tmp_path / "x"), "'f.g' is a builtin_function"),
        (lambda: checkpoint.save({(1, 2): 1}, tmp_path / "x"), "key of type tuple"),
        (lambda: checkpoint.save({}, tmp_path / "text" / "x"), "folder"),
    ):
        with pytest.raises(ProgramError, match=words):
            call()
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_costs_the_wafer_what_does_not_overlap() -> None:
    """100 bytes at 10 bytes/s of storage and 50 bytes/s of MemoryX, steps of 1 s."""
    cluster = SimpleNamespace(memoryx_bytes_per_s=50.0)
    compiled = SimpleNamespace(
        checkpoint_bytes=100.0, step_s=1.0, result=SimpleNamespace(plan=SimpleNamespace(cluster=cluster))
    )

    def cost(overlapped: bool, every: int, final: bool = False) -> float:
        run = SimpleNamespace(options=SimpleNamespace(storage_bytes_per_s=10.0, async_checkpoints=overlapped))
        execution = SimpleNamespace(checkpoint_steps=every, on_final_iteration=final)
        return simulated.checkpoint_seconds(run, execution, compiled)

    assert cost(False, 20) == 10.0
    assert cost(True, 20) == 2.0  # the copy; the write hides behind 20 s
    assert cost(True, 4) == 2.0 + (10.0 - 4.0)
    assert cost(True, 20, final=True) == 10.0  # no step is left to hide behind


@pytest.mark.parametrize("kind", ["link", "external", "virtual", "dtype"])
def test_a_checkpoint_reads_no_other_file(tmp_path, kind):
    """Links and storage of HDF5 that lead to other files are refused; a type of elements is checked, not looked up in
    torch by name.
    """
    secret, other, path = tmp_path / "secret", tmp_path / "other.h5", tmp_path / "c.mdl"
    secret.write_bytes(bytes(range(20)))
    with h5py.File(other, "w") as file:
        file["x"] = [1.0, 2.0]
    with h5py.File(path, "w") as file:
        if kind == "link":
            file["inner/x"] = h5py.ExternalLink(str(other), "/x")
        elif kind == "external":
            file.create_dataset("x", (20,), "u1", external=[(str(secret), 0, 20)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((2,), "f8")
            layout[:] = h5py.VirtualSource(other, "x", (2,))
            file.create_virtual_dataset("x", layout)
        else:
            file.create_dataset("__spec__", data='{"v": {"dtype": "os"}}')
    with pytest.raises(ProgramError, match="as an element type" if kind == "dtype" else "from another file"):
        checkpoint.load(path, map_location="cpu")
    if kind == "link":
        with pytest.raises(ProgramError, match="from another file"):
            PyTorchH5Saver().save_tensor(path, "inner/x", torch.zeros(2))
        with h5py.File(other) as file:
            assert file["x"][()].tolist() == [1.0, 2.0]
