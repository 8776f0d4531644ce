"""Figures that a notebook shows as the last line of a cell, without pyplot and its global state."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure that IPython displays as an image."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", metadata={"Software": None})
        return stream.getvalue()
