"""A model that does not fit is an answer, not a fault.

python examples/what_fits.py
"""

from wse_sim import api


def main() -> None:
    """A 13-billion-parameter decoder in a pipeline, where every weight must rest on the wafer."""
    answer = api.run("gpt3-13b", mode="pipelined", batch=64)
    assert isinstance(answer, api.Infeasible)
    print(answer.message)
    print(f"{answer.binding}: {answer.need / 1e9:,.1f} of {answer.limit / 1e9:,.1f} GB")


if __name__ == "__main__":
    main()
