"""The cores of a running program by column and row, and their memories: what a host reads and writes between two cycles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image

Array = npt.NDArray[np.generic]


class RectangleOfCores:
    """Coordinates and memories of an image that a machine runs."""

    image: Image
    machine: S.Machine
    sanitizes: bool

    def core(self, x: int, y: int) -> int:
        """Index of a core.

        Raises
        ------
        ProgramError
            If (x, y) is outside the rectangle.
        """
        if not (0 <= x < self.image.cols and 0 <= y < self.image.rows):
            raise ProgramError(
                f"core ({x}, {y}) is outside the rectangle of {self.image.cols} x {self.image.rows}; x and y count from its north-west core"
            )
        return y * self.image.cols + x

    def _memory(self, address: int, n: int) -> Array:
        words = int(self.machine.sets[S.WORDS])
        if address < 0 or n < 0 or address + n > words:
            raise ProgramError(
                f"words {address} to {address + n} are outside the memory of the program, which ends at word {words}"
            )
        return self.machine.memory.reshape(self.image.n_cores, words)

    def poke(self, x: int, y: int, address: int, words: npt.ArrayLike) -> None:
        """Write 16-bit words into a core."""
        data = np.asarray(words, np.uint16).ravel()
        self._memory(address, len(data))[self.core(x, y), address : address + len(data)] = data
        self._mark_written(x, y, 1, 1, address, len(data))

    def peek(self, x: int, y: int, address: int, n: int) -> Array:
        """Read `n` words of a core (a copy)."""
        return self._memory(address, n)[self.core(x, y), address : address + n].copy()

    def poke_region(self, x: int, y: int, w: int, h: int, address: int, words: npt.ArrayLike) -> None:
        """Write ``words`` (h, w, n) into the cores of a region, the same address everywhere."""
        self.core(x, y)
        self.core(x + w - 1, y + h - 1)
        data = np.asarray(words, np.uint16).reshape(h, w, -1)
        memory = self._memory(address, data.shape[2]).reshape(self.image.rows, self.image.cols, -1)
        memory[y : y + h, x : x + w, address : address + data.shape[2]] = data
        self._mark_written(x, y, w, h, address, data.shape[2])

    def _mark_written(self, x: int, y: int, w: int, h: int, address: int, n: int) -> None:
        if self.sanitizes:
            self._written()[y : y + h, x : x + w, address : address + n] = 1

    def _written(self) -> Array:
        return self.machine.written.reshape(self.image.rows, self.image.cols, -1)

    def peek_region(self, x: int, y: int, w: int, h: int, address: int, n: int) -> Array:
        """Words (h, w, n) of the cores of a region (a copy)."""
        self.core(x, y)
        self.core(x + w - 1, y + h - 1)
        memory = self._memory(address, n).reshape(self.image.rows, self.image.cols, -1)
        return memory[y : y + h, x : x + w, address : address + n].copy()

    def region(self, x: int, y: int, w: int, h: int) -> Array:
        """Indices of the cores of a region."""
        self.core(x, y)
        self.core(x + w - 1, y + h - 1)
        return (np.arange(y, y + h)[:, None] * self.image.cols + np.arange(x, x + w)).ravel()

    def unwritten(self, x: int, y: int, w: int, h: int, address: int, n: int) -> list[tuple[int, int, int]]:
        """(x, y, first address) of the cores of a region with words that nobody wrote; none unless the sanitizer watches."""
        if not self.sanitizes:
            return []
        part = self._written()[y : y + h, x : x + w, address : address + n] == 0
        return [
            (x + int(i), y + int(j), address + int(part[j, i].argmax()))
            for j, i in np.argwhere(part.any(axis=2))
        ]
