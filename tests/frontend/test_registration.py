"""Families, operators and rewrites by users, and the page that documents them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import wse_sim  # noqa: E402
from wse_sim.errors import KernelError, ModelError, UnsupportedOpError  # noqa: E402
from wse_sim.frontend.classify import HANDLERS  # noqa: E402
from wse_sim.frontend.fusions import FUSIONS  # noqa: E402
from wse_sim.frontend.patterns import PATTERNS, made_from  # noqa: E402
from wse_sim.kernels import REGISTRY, Family  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "add-an-operator.md"


def test_the_page_adds_an_operator_with_training() -> None:
    """docs/add-an-operator.md runs unchanged, and its registrations are removed afterwards."""
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    scope: dict[str, Any] = {}
    with wse_sim.temporary_registrations():
        exec(compile(code, PAGE.name, "exec"), scope)
        assert "cube" in REGISTRY
    assert "cube" not in REGISTRY
    assert "demo.cube" not in HANDLERS
    with pytest.raises(UnsupportedOpError, match=r"demo\.cube .*add it with wse_sim\.register_operator"):
        wse_sim.lower(scope["Model"](), (torch.randn(8, 64),))


class TwiceIsDouble:
    """x + x becomes a product with 2."""

    name = "twice is double"
    roots = frozenset({"add"})

    def match(self, node: Any, trace: Any) -> Any:
        x, y = node.args[:2]
        return made_from(node, "mul", (x, 2.0)) if x == y else None


def test_a_rewrite_of_operators_and_one_of_kernels() -> None:
    """A pattern changes the operator of a kernel; a fusion is called for every kernel; both can be undone."""

    class Ask:
        name = "ask"
        seen: list[str] = []  # noqa: RUF012

        def apply(self, draft: Any, kernel: Any) -> None:
            self.seen.append(kernel.name)

    class Twice(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + x

    def ops() -> list[Any]:
        return [k.attrs["ops"] for k in wse_sim.lower(Twice(), (torch.randn(4, 8),))]

    before = len(PATTERNS), len(FUSIONS)
    with wse_sim.temporary_registrations():
        wse_sim.register_rewrite(TwiceIsDouble())
        wse_sim.register_rewrite(Ask())
        assert ops() == ["mul"]
        assert Ask.seen == ["mul"]
    assert ops() == ["add"]
    assert before == (len(PATTERNS), len(FUSIONS))


def test_what_is_no_registration_is_refused() -> None:
    """Each error is one sentence: no family, a family without a name, no operator, no rewrite."""
    with pytest.raises(KernelError, match="not a kernel family; give an object"):
        wse_sim.register_family("gemm")  # type: ignore[type-var]
    with pytest.raises(KernelError, match="set both on the class"):
        wse_sim.register_family(Family())
    with pytest.raises(ModelError, match="names no operator"):
        wse_sim.register_operator()
    with pytest.raises(ModelError, match="is not a rewrite; it needs a name"):
        wse_sim.register_rewrite(object())  # type: ignore[type-var]
