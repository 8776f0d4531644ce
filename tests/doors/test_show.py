"""``show wafer NAME PART`` shows some constants, with readable values."""

from __future__ import annotations

import json


def test_a_part_of_a_name_shows_its_constants_with_units_for_people(wse):
    """Hertz and bytes per second have prefixes, counts have commas; JSON keeps plain numbers."""
    text = wse("show", "wafer", "wse2", "clock").out
    assert "clock_hz                       1.1 GHz   90 %: 1.05 GHz to 1.1 GHz" in text
    assert "exp_cycles" not in text
    assert (
        "launch_floor_s                 288 us   90 %: 275 us to 300 us"
        in wse("show", "wafer", "wse2", "launch").out
    )
    assert "150 GB/s" in wse("show", "wafer", "wse2", "io_bytes").out
    assert "49,152 bytes" in wse("show", "wafer", "wse2", "sram_bytes").out
    assert "120 GB/s" in wse("show", "cluster", "default", "swarmx_bytes").out
    data = json.loads(wse("show", "wafer", "wse2", "clock", "--json").out)["constants"]
    assert data["clock_hz"]["value"] == 1.1e9
    assert all("clock" in name for name in data)


def test_a_part_that_no_name_has_is_one_sentence(wse):
    """The sentence has names that are spelled alike."""
    ran = wse("show", "wafer", "wse2", "clok")
    assert ran.status == 2
    assert "no constant of wse2 has 'clok' in its name; did you mean" in ran.err
