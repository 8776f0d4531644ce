"""Baselines: the least number of systems that is as fast, and MFU by one formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from wse_sim.baselines import Baselines, as_dicts, compare_baselines, load_baselines, table
from wse_sim.errors import ConfigError, ModelError
from wse_sim.hardware import load_wafer

SHIPPED = Path(__file__).parents[2] / "benchmarks" / "validation" / "baselines.yaml"
MODEL = {"family": "mlp", "layers": 2, "hidden": 256, "input": 256, "classes": 10}


def data(step_s: float, batch: int = 64) -> Baselines:
    point = {
        "id": "small", "device": "chip", "devices": 2, "software": "hand", "model": MODEL, "shape": "published",
        "parameters": 7e6, "batch": batch, "step_s": step_s, "source": "made up",
    }  # fmt: skip
    device = {"peak_flops_per_s": 1e14, "source": "made up", "evidence": "assumed"}
    return Baselines(schema=1, series={"hand": ("small",)}, devices={"chip": device}, points=(point,))


@pytest.mark.slow
def test_a_slow_baseline_is_matched_by_one_system():
    (row,) = compare_baselines("hand", data=data(step_s=10.0))
    assert (row.systems, row.is_match) == (1, True)
    # 6 x 7e6 parameters x 64 samples in 10 s on 2 chips of 1e14.
    assert row.mfu == pytest.approx(6 * 7e6 * 64 / 10 / 2e14)
    peak = load_wafer("wse2").peak_fp16_flops_per_s
    assert row.system_mfu == pytest.approx(6 * 7e6 * row.system_tokens_per_s / peak)
    assert row.devices_per_system == pytest.approx(row.system_samples_per_s / 6.4 * 2)


def test_the_least_number_of_systems_is_found():
    alone = compare_baselines("hand", data=data(step_s=10.0, batch=65536))[0]
    step_s = 65536 / alone.system_samples_per_s
    (row,) = compare_baselines("hand", data=data(step_s=step_s / 2.5, batch=65536))
    assert row.is_match
    assert row.systems > 1
    assert row.system_samples_per_s >= row.samples_per_s


@pytest.mark.slow
def test_a_baseline_out_of_reach_says_so():
    (row,) = compare_baselines("hand", data=data(step_s=1e-6, batch=4))
    assert not row.is_match
    assert row.systems == 4  # no more systems than samples
    assert "> 4" in table([row])


def test_the_shipped_file_reads_and_holds_its_own_mfu():
    shipped = load_baselines(SHIPPED)
    assert set(shipped.series["gpt2-series"]) <= {point.id for point in shipped.points}
    for point in shipped.points:
        work = 6 * point.parameters * point.batch * point.model["seq"]
        peak = point.devices * shipped.devices[point.device].peak_flops_per_s
        if point.mfu is not None and point.device == "tpu-v4":
            assert work / point.step_s / peak == pytest.approx(point.mfu, rel=0.03)
    assert as_dicts([]) == []


def test_faults_are_sentences(tmp_path):
    with pytest.raises(ModelError, match="series 'llama'"):
        compare_baselines("llama", data=data(1.0))
    path = tmp_path / "b.yaml"
    content = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    content["points"][0]["device"] = "abacus"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(ConfigError, match="abacus"):
        load_baselines(path)
