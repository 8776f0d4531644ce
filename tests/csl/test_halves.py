"""The 16-bit floats of a program: bf16 against PyTorch, cb16 against exact fractions, and one format a program."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from wse_sim.csl import CslError, compile_program
from wse_sim.errors import WseError
from wse_sim.fabric.vm.half_floats import bf16_bits, bits_cb16, cb16_bits
from wse_sim.fabric.vm.image import Symbol

from .machine import LAYOUT, Machine

VECTORS = """
var a: [8]{t}; var b: [8]{t}; var d = @zeros([8]{t}); var wide = @zeros([8]f32); var r = @zeros([8]{t}); var factor: {t} = 0.7;
const ad = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> a[i] }});
const bd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> b[i] }});
const dd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> d[i] }});
const wd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{8}} -> wide[i] }});
fn run() void {{
  @faddh(dd, ad, bd);
  @fmulh(dd, dd, factor);
  @fh2s(wd, dd);
  for (@range(i16, 8)) |i| {{ r[i] = a[i] * b[i] - factor; }}
}}
comptime {{ @export_symbol(run); @export_symbol(a); @export_symbol(b); @export_symbol(d); @export_symbol(wide); @export_symbol(r); }}
"""


def machine(folder: Path, text: str, fp16: str = "f16") -> Machine:
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(text)
    return Machine(compile_program(folder / "layout.csl", fp16=fp16))


def random_floats(n: int) -> np.ndarray:
    """Any bits, and numbers of the usual sizes."""
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    usual = (rng.standard_normal(n) * 2.0 ** rng.integers(-40, 34, n)).astype(np.float32)
    return np.concatenate([bits[~np.isnan(bits)], usual])


def test_bf16_rounds_as_pytorch_does() -> None:
    numbers = random_floats(2000)
    wanted = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy().astype(np.uint16)
    assert [bf16_bits(x) for x in numbers] == wanted.tolist()


def exact(bits: int) -> Fraction:
    """The number of a finite cb16: six bits of exponent with bias 42, nine of mantissa."""
    exponent, mantissa = bits >> 9 & 63, bits & 511
    size = (
        Fraction(mantissa, 512) * Fraction(2) ** -41
        if exponent == 0
        else (1 + Fraction(mantissa, 512)) * Fraction(2) ** (exponent - 42)
    )
    return -size if bits & 0x8000 else size


def test_cb16_is_read_exactly_and_rounds_to_the_nearest() -> None:
    finite = [bits for bits in range(0, 0x8000, 7) if bits >> 9 != 63]
    assert [Fraction(float(bits_cb16(bits))) for bits in finite] == [exact(bits) for bits in finite]
    for x in random_floats(500):
        bits = int(cb16_bits(x))
        if (
            not np.isfinite(x) or abs(float(x)) >= 2.0**21 - 2.0**10
        ):  # halfway to the number behind the largest
            assert bits & 0x7FFF == 63 << 9, x
            continue
        error = abs(exact(bits) - Fraction(float(x)))
        others = [
            abs(exact(other) - Fraction(float(x)))
            for other in (bits - 1, bits + 1)
            if other >> 9 & 63 != 63 and other & 0x7FFF > 0
        ]
        assert all(error < other or (error == other and bits % 2 == 0) for other in others), x


@pytest.mark.parametrize("fp16", ["f16", "bf16"])
def test_a_program_computes_in_its_format(tmp_path: Path, fp16: str) -> None:
    """Every operation rounds: PyTorch's tensors of the format say what comes out."""
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[fp16]
    torch.manual_seed(3)
    a, b = torch.randn(8).to(kind), torch.randn(8).to(kind)
    factor = torch.tensor(0.7).to(kind)
    run = machine(tmp_path, VECTORS.format(t=fp16), fp16)
    for name, values in (("a", a), ("b", b)):
        symbol = held(run, name)
        run.session.poke(0, 0, symbol.address, values.view(torch.int16).numpy().astype(np.uint16))
    run.call("run")
    scaled = (a + b) * factor
    assert words(run, "d") == bits_of(scaled)
    assert words(run, "r") == bits_of(a * b - factor)
    np.testing.assert_array_equal(
        np.array(words(run, "wide"), np.uint16).view(np.float32), scaled.float().numpy()
    )


def held(run: Machine, name: str) -> Symbol:
    return {s.name: s for s in run.program.image.classes[0].symbols}[name]


def words(run: Machine, name: str) -> list[int]:
    symbol = held(run, name)
    return [int(w) for w in run.session.peek(0, 0, symbol.address, symbol.words)]


def bits_of(values: torch.Tensor) -> list[int]:
    return [int(w) for w in values.view(torch.int16).numpy().astype(np.uint16)]


def test_bits_of_six_as_the_language_guide_gives_them(tmp_path: Path) -> None:
    """The one public statement about the bias of cb16."""
    text = """const a: f16 = 6.0; const b: cb16 = 6.0; const c: bf16 = 6.0; fn run() void { }
    comptime {
      @comptime_assert(@bitcast(u16, a) == 0b0100011000000000);
      @comptime_assert(@bitcast(u16, b) == 0b0101100100000000);
      @comptime_assert(@bitcast(u16, c) == 0b0100000011000000);
      @export_symbol(run);
    }"""
    machine(tmp_path, text)
    assert int(cb16_bits(np.float32(6.0))) == 0b0101100100000000


def test_another_format_than_the_program_s_is_refused(tmp_path: Path) -> None:
    text = "var a: bf16 = 1.5; fn run() void { a = a + a; } comptime { @export_symbol(run); }"
    with pytest.raises(
        CslError,
        match=r"pe\.csl:1:\d+: 'bf16' at run time in a program of 'f16': it needs --fp16-format=bf16",
    ):
        machine(tmp_path, text)
    with pytest.raises(CslError, match="elements of type 'bf16' in a program of 'f16'"):
        machine(tmp_path, VECTORS.format(t="bf16"))
    with pytest.raises(WseError, match="--fp16-format is 'f8'; it must be f16, bf16, cb16"):
        machine(tmp_path, text, "f8")


def test_the_address_of_a_descriptor_is_no_operand(tmp_path: Path) -> None:
    """It was taken for the data: the descriptor was overwritten, or read as numbers."""
    text = VECTORS.format(t="f16").replace("@faddh(dd,", "@faddh(&dd,")
    with pytest.raises(
        CslError,
        match=r"pe\.csl:8:10: an operand of type '\*const mem1d_dsd' is the address of a descriptor; leave the & out",
    ):
        machine(tmp_path, text)
