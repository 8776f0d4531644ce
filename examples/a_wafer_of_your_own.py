"""Derive a wafer: what would cost or gain how much?

python examples/a_wafer_of_your_own.py
"""

from wse_sim import api


def main() -> None:
    """One constant changed at a time, everything else as published."""
    wafer = api.load_wafer("wse2")
    graph = api.load_model("fc-mnist", training=True)
    published = api.run(graph, mode="weight-streaming", batch=256, wafer=wafer)
    assert isinstance(published, api.Result)
    print(f"wse2: {published.samples_per_s:,.0f} samples/s, bound by {published.binding}")
    for name, factor in (("launch_floor_s", 0.5), ("special_element_cycles", 0.5), ("hop_cycles", 2)):
        constant = wafer.provenance[name]
        changed = wafer.derive(**{name: type(getattr(wafer, name))(getattr(wafer, name) * factor)})
        result = api.run(graph, mode="weight-streaming", batch=256, wafer=changed)
        assert isinstance(result, api.Result)
        gain = result.samples_per_s / published.samples_per_s - 1
        print(f"{name} x {factor} ({constant.evidence}): {gain:+.1%}")


if __name__ == "__main__":
    main()
