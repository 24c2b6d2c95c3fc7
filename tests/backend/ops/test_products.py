"""Products of float32 matrices are torch's to rounding, whichever library multiplies, whatever the strides of operands and results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import backend.ops.products as products
from backend.ops.fused.products import mm_bias

LAYOUTS = {
    "weights as they are": lambda a: a,
    "transposed": lambda a: a.t().contiguous().t(),
    "every second column": lambda a: torch.stack([a, a], -1).flatten(1)[:, ::2],
}


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "mkl_is_slow", lambda: request.param)


def operands(layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((160, 96), (96, 192), (192,)))
    assert 160 * 96 * 192 >= 2**21, "large enough for oneDNN"
    return LAYOUTS[layout](x.to(dtype)), LAYOUTS[layout](w.to(dtype)), bias.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_torchs_to_rounding(library: None, layout: str) -> None:
    x, w, bias = operands(layout)
    torch.testing.assert_close(products.product(x, w), torch.mm(x, w))
    torch.testing.assert_close(mm_bias(bias, x, w), torch.addmm(bias, x, w))


def test_a_product_is_written_to_the_memory_that_is_given(library: None) -> None:
    x, w, bias = operands("transposed")
    for out in (torch.empty(160, 192), torch.empty(192, 160).t()):
        assert products.product(x, w, out=out) is out
        torch.testing.assert_close(out, torch.mm(x, w))
        assert mm_bias(bias, x, w, out=out) is out
        torch.testing.assert_close(out, torch.addmm(bias, x, w))


def test_what_is_small_or_of_another_dtype_is_torchs_own(library: None) -> None:
    x, w, bias = operands("transposed")
    assert torch.equal(products.product(x[:8], w[:, :8]), torch.mm(x[:8], w[:, :8]))
    for dtype in (torch.float64, torch.bfloat16):
        x, w, bias = operands("transposed", dtype)
        assert torch.equal(products.product(x, w, bias), torch.addmm(bias, x, w))


@pytest.mark.parametrize("strides", [(1, 1), (5, 1), (1, 5), (0, 1), (1, 0), (0, 0)], ids=str)
def test_operands_whose_rows_share_memory_are_multiplied_too(library: None, strides: tuple[int, int]) -> None:
    x, _, bias = operands("weights as they are")
    w = torch.linspace(-1, 1, 1200).as_strided((96, 192), strides)
    torch.testing.assert_close(products.product(x, w, bias), torch.addmm(bias, x, w))
    torch.testing.assert_close(products.product(w.t(), x.t()), torch.mm(w.t(), x.t()))


@pytest.mark.parametrize(
    ("maker", "family", "flags", "slow"),
    [
        ("AuthenticAMD", 26, "fpu avx2 avx512f", True),
        ("AuthenticAMD", 25, "fpu avx2 avx512f", False),
        ("AuthenticAMD", 26, "fpu avx2", False),
        ("GenuineIntel", 26, "fpu avx2 avx512f", False),
        ("GenuineIntel", 6, "fpu avx2", False),
    ],
)
def test_mkl_is_taken_for_slow_on_amds_cpus_with_avx_512_at_full_width_alone(
    maker: str, family: int, flags: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        pytest.skip("this torch has one library only")
    said = tmp_path / "cpuinfo"
    core = f"vendor_id\t: {maker}\ncpu family\t: {family}\nflags\t\t: {flags}\n"
    said.write_text(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}")
    monkeypatch.setattr(products, "_CPU", said)
    assert products.mkl_is_slow.__wrapped__() is slow
    monkeypatch.setattr(products, "_CPU", tmp_path / "no such file")
    assert products.mkl_is_slow.__wrapped__() is False
