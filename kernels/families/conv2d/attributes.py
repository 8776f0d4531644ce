"""Attributes of convolution kernels."""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.kernels.contract.parameters import (
    WeightAttributes,
    attribute,
)


@dataclass(frozen=True)
class Conv2dAttributes(WeightAttributes):
    """Attributes of a convolution."""

    groups: int = attribute(1, "groups of channels")
    dilation: int = attribute(1, "pixels from tap to tap", at_least=1)
    transposed: bool = attribute(False, "results are spread from the image instead of gathered")
    unfolded: bool = attribute(
        False,
        "stationary: runs of taps and channels in whole words over the rows, outputs finished by the last one",
    )
    together: int = attribute(
        1,
        "unfolded: pixels of a line that come as one, in whole words; the first of a line's results begins with them",
        at_least=1,
    )
    around: int = attribute(
        -1, "lines and columns of zeros around an image; -1: the least that give as many results", at_least=-1
    )
    spare: int = attribute(
        0,
        "last pixels of a line of the result that no kernel reads, so that several are computed at a time",
        at_least=0,
    )
    unread: int = attribute(0, "last pixels of a line of the image that no window reaches", at_least=0)
    uneven: bool = attribute(
        False, "a stride over 2, and other strides or zeros along lines than along columns"
    )
    apart: bool = attribute(
        False,
        "stationary, depthwise: channels over the rows of cores, bands of lines over the columns",
    )
    trains: bool = attribute(
        False,
        "stationary: laid out as a layer that trains in a whole model on the fabric, one link for every stream",
    )
    has_bias: bool = attribute(False, "trains: the weight gradient includes that of a bias")
    eps: float = attribute(
        0.0, "of a batch norm that is folded into filters and bias; 0: there is none", at_least=0.0
    )
