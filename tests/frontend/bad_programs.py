"""Programs that a static machine cannot run, each with the expected words of its sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROGRAMS: list[tuple[str, nn.Module, tuple[Any, ...], tuple[str, ...]]] = []
"""(name, module, example arguments, parts of the sentence)."""

_X = torch.randn(4, 8)


def bad(*parts: str, args: tuple[Any, ...] = (_X,)) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Register a module class as a bad program whose sentence holds `parts`."""

    def put(kind: type[nn.Module]) -> type[nn.Module]:
        PROGRAMS.append((kind.__name__, kind(), args, parts))
        return kind

    return put


@torch.library.custom_op("wse_bad::without_fake", mutates_args=())
def without_fake(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("wse_bad::with_fake", mutates_args=())
def with_fake(x: Tensor) -> Tensor:
    return x.clone()


@with_fake.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Large(nn.Module):
    """Has too many weights without values to run once, so that no example decides what values decide."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(2 * 10**9, device="meta"))


@bad("bad_programs.py", "if x.max() < 0", "control flow depends on the values", "torch.where")
class IfOnAValue(Large):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() < 0:
            return x
        return -x


@bad("bad_programs.py", "while x.sum() > 1", "control flow depends on the values", "torch.where")
class WhileOnAValue(Large):
    def forward(self, x: Tensor) -> Tensor:
        while x.sum() > 1:
            x = x / 2
        return x


@bad("bad_programs.py", "x.sum().item()", "read into Python", "keep it as a tensor")
class Item(Large):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()


@bad("bad_programs.py", "float(x.mean())", "read into Python", "keep it as a tensor")
class FloatOfATensor(Large):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.mean())


@bad("bad_programs.py", "tolist", "read into Python", "keep it as a tensor")
class ToList(Large):
    def forward(self, x: Tensor) -> Tensor:
        return x * x[0].tolist()[0]


@bad("bad_programs.py", "int(x.sum())", "read into Python")
class ShapeFromAValue(Large):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros(int(x.sum())) + x.sum()


@bad("bad_programs.py", "range(int(", "read into Python")
class LoopFromAValue(Large):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum())):
            x = x + 1
        return x


@bad("bad_programs.py", "x[x > 0]", "shape of a result depends on values", "torch.where")
class BooleanIndexing(Large):
    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0] * 2


@bad("bad_programs.py", "nonzero", "shape of a result depends on values")
class Nonzero(Large):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nonzero(x) * 2


@bad("bad_programs.py", "unique", "shape of a result depends on values")
class Unique(Large):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x.long())


@bad("bad_programs.py", "masked_select", "shape of a result depends on values")
class MaskedSelect(Large):
    def forward(self, x: Tensor) -> Tensor:
        return torch.masked_select(x, x > 0)


@bad("bad_programs.py", "if torch.nonzero(x).shape[0] > 3", "control flow depends on the values")
class IfOnACount(Large):
    def forward(self, x: Tensor) -> Tensor:
        if torch.nonzero(x).shape[0] > 3:
            return x
        return -x


@bad("wse_bad::without_fake", "fake", "register_fake")
class CustomOperatorWithoutFake(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return without_fake(x)


@bad("operator wse_bad.with_fake", "bad_programs.py", "no kernel")
class CustomOperatorWithoutKernel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return with_fake(x)


class _Cache:
    def __init__(self, x: Tensor) -> None:
        self.x = x


@bad("class that torch cannot decompose", "return tensors")
class ObjectInTheOutput(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return _Cache(x)


@bad("self.state", "register_buffer")
class AssignedAttribute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.state + x
        return self.state * 2


@bad("bad_programs.py", "numpy", "stay with torch")
class Numpy(Large):
    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy()) * 2


@bad("bad_programs.py", "torch.cond", "torch.where")
class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


@bad("bad_programs.py", "self.fc(x)", "shapes do not fit", "arguments")
class WrongShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


@bad("example arguments do not fit", "forward()", args=())
class MissingArgument(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@bad("operator linalg_svd", "bad_programs.py", "no kernel")
class UnknownOperator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.svd(x)[0]


@bad("bad_programs.py", "linalg_qr", "Newton-Schulz", args=(torch.randn(4, 4),))
class OrthogonalFactor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.qr(x)[0]


@bad("bad_programs.py", "the shapes do not fit", "example arguments", args=(torch.randn(1, 4, 8, 8),))
class OtherChannels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


@bad("computes nothing", "it returns them, or constants")
class ConstantResult(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(3)


@bad("bad_programs.py", "fft_c2c", "over 4 axes", "transform three axes")
class FourierOfFourAxes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fftn(x[None, None] * 1j).real


@bad("bad_programs.py", "works on complex numbers", "real and imaginary parts")
class ComplexTangent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tan(torch.complex(x, x)).real


@bad("quantised type", "PT2E", "bad_programs.py")
class QuantisedTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@bad("sparse", "to_dense")
class Sparse(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), x.T)


@bad("bad_programs.py", "undefined_name", "NameError")
class Misspelt(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + undefined_name  # type: ignore[name-defined]  # noqa: F821


@bad("bad_programs.py", "x.backward", "gradient", "training=True")
class BackwardInForward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x.sum().backward()  # x.backward inside forward
        return x


@bad(
    "bad_programs.py",
    "self.table(x)",
    "indices of an embedding are not integers",
    "torch.long",
    args=(torch.randn(4, 8),),
)
class FloatIndices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.table(x))


@bad("counter", "0 before, 1 after", "outside the model")
class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = 0

    def forward(self, x: Tensor) -> Tensor:
        self.counter += 1
        return x * self.counter


@bad("log", "0 before, 1 after", "outside the model")
class Journal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(1)
        return x * 2


@bad("bad_programs.py", "bessel_j0", "no kernel")
class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x * 2)


@bad(
    "bad_programs.py",
    "import a_library_that_nobody_has",
    "imports 'a_library_that_nobody_has', which",
    "install it there",
)
class NeedsALibrary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        import a_library_that_nobody_has

        return a_library_that_nobody_has.work(x)


class OwnError(Exception):
    """An error of the model's author."""


@bad(
    "bad_programs.py",
    "raise ValueError",
    "check that the model makes",
    "(ValueError: 8 features for 16",
    "that pass it",
)
class ChecksItsSizes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != 16:
            raise ValueError(f"{x.shape[-1]} features for 16")
        return x * 2


@bad("bad_programs.py", "raise OwnError", "check that the model makes", "(OwnError: no such mode)")
class RaisesItsOwn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise OwnError("no such mode")


@bad("bad_programs.py", "y.shape", "has None where it needs a value", "give the argument that is missing")
class NeedsAnother(nn.Module):
    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return x.expand(y.shape)  # type: ignore[union-attr]


@bad(
    "bad_programs.py",
    "b, c, h, w = x.shape",
    "the shapes do not fit",
    "expected 4, got 2",
    "check the example",
)
class NeedsAnImage(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.reshape(b, c * h * w)


@bad(
    "bad_programs.py",
    "split([3, 2]",
    "forward() also fails without a capture",
    "Split sizes",
    "compare the sizes",
)
class SplitThatDoesNotFit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(x.split([3, 2], -1))


@bad("bad_programs.py", "split([1, 2]", "forward() also fails without a capture", "Split sizes")
class SplitBehindACheckThatDoesNotFit(nn.Module):
    """The check reads values, which neither the capture nor the run without one has."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.isfinite(x).all():
            raise ValueError("not a number")
        return torch.cat(x.split([1, 2], -1))


@bad("bad_programs.py", 'self.sizes["b"]', "forward() also fails without a capture", "KeyError")
class MissingKey(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = {"a": 1}

    def forward(self, x: Tensor) -> Tensor:
        return x * self.sizes["b"]


@bad(
    "bad_programs.py",
    "len(mask)",
    "forward() has None where it needs a value",
    "give the argument that is missing",
)
class LengthOfNone(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x * len(mask)  # type: ignore[arg-type]


@bad("bad_programs.py", "F.conv2d(image, x)", "forward() has None where it needs a value")
class ConvolutionOfNone(nn.Module):
    def forward(self, x: Tensor, image: Tensor | None = None) -> Tensor:
        return F.conv2d(image, x)  # type: ignore[arg-type]
