"""Attributes of products with weights."""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.kernels.contract.parameters import (
    WeightAttributes,
    attribute,
)


@dataclass(frozen=True)
class GemmAttributes(WeightAttributes):
    """Attributes of a product with weights."""

    bank_conflict: bool = attribute(True, "SUMMA: operands are in colliding banks")
    skew: bool = attribute(True, "MeshGEMM, Cannon: operands are skewed first")
    word_rows: bool = attribute(
        False, "stationary: inputs in whole words over the rows, outputs finished by the last one"
    )
    trained_rows: bool = attribute(
        False,
        "stationary: laid out as a layer of a network that trains, the last row without inputs; on all its passes",
    )
    most_residuals: int = attribute(1, "with word_rows: parallel streams of a residual")
    has_links: bool = attribute(
        False, "with trained_rows: it has most_bundles and most_results streams, neither more nor fewer"
    )
    layers: int = attribute(
        1,
        "with word_rows or trained_rows: layers of as many outputs of which it is made on the fabric, side by side on parts of the columns",
    )
    finished: str = attribute(
        "", "with trained_rows: work on the outputs of the layer, stated on all its passes"
    )
    passes_on: bool = attribute(
        False, "with trained_rows: gradients of the inputs are asked for, stated on all its passes"
    )
