"""Attributes of attention kernels."""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.kernels.contract.parameters import (
    HALF_SUMS,
    Attributes,
    attribute,
)

FP16_MOST = 65504.0  # scores are multiplied as fp16


@dataclass(frozen=True)
class AttentionAttributes(Attributes):
    """Attributes of attention; `part` names a part of it that runs alone."""

    causal: bool = attribute(False, "a query sees the keys before it")
    dropout: float = attribute(0.0, "fraction of the probabilities that is dropped")
    mask: str = attribute("", "dense: values that are added to the scores", choices=("", "dense"))
    value_width: int = attribute(0, "features of a value per head; 0: as many as of a key")
    accumulate: str = attribute("", "type of the sums; empty: fp32", choices=("", "fp32", *HALF_SUMS))
    recompute: bool = attribute(False, "the backward pass recomputes the scores")
    part: str = attribute(
        "", "a part that runs alone; empty: all", choices=("", "scores", "softmax", "values", "products")
    )
    groups: int = attribute(0, "groups of the K-tree of decode; 0: about the square root of the rows")
    pairs: bool = attribute(False, "queries over rows, keys over columns: a core has the scores of its pairs")
    bands: int = attribute(
        1, "with pairs: bands of rows, each with an equal number of heads and its own links", at_least=1
    )
    trains: bool = attribute(False, "with pairs: a row of the region collects sums of keys and values")
    packed: bool = attribute(
        False, "queries, keys and values are three slices of one tensor, one after the other, head by head"
    )
    scale: float = attribute(0.0, "factor of the scores; 0: 1 / sqrt(d)", at_most=FP16_MOST)
    cap: float = attribute(0.0, "bound of the scores: cap tanh(score / cap); 0: none", at_most=FP16_MOST)
    unusual: str = attribute(
        "",
        "scores: they pass more than a factor and a mask; order: features of an operand are not stored head by head",
        choices=("", "scores", "order"),
    )

    @property
    def masks(self) -> bool:
        """Whether values are added to the scores: a mask, causal or dense."""
        return self.causal or bool(self.mask)
