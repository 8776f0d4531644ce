"""The CTC family: values against torch's CTC loss, its program against cost and values."""

import numpy as np
import pytest

from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.kernels.families.ctc import NEVER

CTC = family("ctc")
WSE2 = load_wafer("wse2")


@pytest.mark.parametrize("labels", [[1, 2, 3], [2, 2, 1], [3, 3, 3]])
def test_the_loss_is_that_of_torch(labels: list[int]) -> None:
    """Consecutive equal labels need a blank between them."""
    torch = pytest.importorskip("torch")
    scores = torch.randn(9, 1, 5, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
    wanted = torch.nn.functional.ctc_loss(
        scores, torch.tensor([labels]), torch.tensor([9]), torch.tensor([3]), reduction="sum"
    )
    states = [0, *(x for label in labels for x in (label, 0))]
    emissions = scores[:, :, states].numpy()
    over = [s % 2 == 1 and (s < 2 or states[s] != states[s - 2]) for s in range(len(states))]
    last = CTC.compute(emissions, np.where(over, 0.0, NEVER).astype(np.float32)[None])[-1, 0, -2:]
    assert -np.logaddexp(*last) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize(
    ("states", "tiling"), [(24, Tiling(2, 4, "streamed")), (20, Tiling(2, 10, "streamed"))]
)
def test_faces(states: int, tiling: Tiling) -> None:
    check_faces(
        CTC,
        {"steps": 5, "states": states, "batch": 2},
        tiling,
        WSE2,
        band=0.02,
        dtype="fp32",
        resident_bytes=4 * 6 * states,
    )


def test_more_cores_never_take_longer_and_twice_the_frames_take_twice_the_time() -> None:
    dims = {"steps": 100, "states": 41, "batch": 4}
    cores = [1, 2, 4, 16, 64, 164, 1000]
    times = [float(CTC.cost(dims, Tiling(1, c, "streamed"), WSE2).total) for c in cores]
    assert times == sorted(times, reverse=True)
    twice = CTC.cost({**dims, "steps": 200}, Tiling(1, 64, "streamed"), WSE2)
    assert float(twice.total) == pytest.approx(2 * times[4])
