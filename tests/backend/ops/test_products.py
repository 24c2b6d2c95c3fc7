"""Products of float32 matrices are torch's to rounding, whichever library multiplies, whatever the strides of operands and results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import backend.ops.cpu.products as products
from backend.ops.cpu.products import Library
from backend.ops.fused.products import mm_bias

LAYOUTS = {
    "weights as they are": lambda a: a,
    "transposed": lambda a: a.t().contiguous().t(),
    "every second column": lambda a: torch.stack([a, a], -1).flatten(1)[:, ::2],
}


@pytest.fixture(params=list(Library), ids=lambda library: library.value)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    chosen: Library = request.param
    if chosen is Library.ONEDNN and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "library", lambda: chosen)
    return chosen


def operands(layout: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((160, 96), (96, 192), (192,)))
    assert 160 * 96 * 192 >= 2**21, "large enough for oneDNN"
    return LAYOUTS[layout](x.to(dtype)), LAYOUTS[layout](w.to(dtype)), bias.to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_torchs_to_rounding(library: Library, layout: str) -> None:
    x, w, bias = operands(layout)
    torch.testing.assert_close(products.product(x, w), torch.mm(x, w))
    torch.testing.assert_close(mm_bias(bias, x, w), torch.addmm(bias, x, w))


def test_a_product_is_written_to_the_memory_that_is_given(library: Library) -> None:
    x, w, bias = operands("transposed")
    for out in (torch.empty(160, 192), torch.empty(192, 160).t()):
        assert products.product(x, w, out=out) is out
        torch.testing.assert_close(out, torch.mm(x, w))
        assert mm_bias(bias, x, w, out=out) is out
        torch.testing.assert_close(out, torch.addmm(bias, x, w))


def test_what_is_small_or_of_another_dtype_is_torchs_own(library: Library) -> None:
    x, w, bias = operands("transposed")
    assert torch.equal(products.product(x[:8], w[:, :8]), torch.mm(x[:8], w[:, :8]))
    for dtype in (torch.float64, torch.bfloat16):
        x, w, bias = operands("transposed", dtype)
        assert torch.equal(products.product(x, w, bias), torch.addmm(bias, x, w))


@pytest.mark.parametrize("strides", [(1, 1), (5, 1), (1, 5), (0, 1), (1, 0), (0, 0)], ids=str)
def test_operands_whose_rows_share_memory_are_multiplied_too(library: Library, strides: tuple[int, int]) -> None:
    x, _, bias = operands("weights as they are")
    w = torch.linspace(-1, 1, 1200).as_strided((96, 192), strides)
    torch.testing.assert_close(products.product(x, w, bias), torch.addmm(bias, x, w))
    torch.testing.assert_close(products.product(w.t(), x.t()), torch.mm(w.t(), x.t()))


def test_openblas_multiplies_what_is_wide_and_lies_in_lines_and_writes_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "library", lambda: Library.OPENBLAS)
    calls: list[tuple[int, ...]] = []
    multiply = np.matmul

    def counted(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> np.ndarray:
        calls.append((*x.shape, w.shape[1]))
        return multiply(x, w, out=out)

    monkeypatch.setattr(np, "matmul", counted)
    x, w, _ = operands("weights as they are")
    out = torch.empty(160, 192)
    products.product(x, w, out=out)
    torch.testing.assert_close(out, torch.mm(x, w))
    assert calls == [(160, 96, 192)]
    gaps = torch.empty(160, 192, 2)[..., 0]  # numpy has no kernel for such memory
    assert products.product(x, w, out=gaps) is gaps
    torch.testing.assert_close(gaps, torch.mm(x, w))
    assert calls == [(160, 96, 192)] * 2
    narrow, wide = torch.randn(4096, 32), torch.randn(32, 256)
    torch.testing.assert_close(products.product(narrow, wide), torch.mm(narrow, wide))
    every_second = LAYOUTS["every second column"](x)
    torch.testing.assert_close(products.product(every_second, w), torch.mm(x, w))
    assert calls == [(160, 96, 192)] * 2


@pytest.mark.parametrize(
    ("maker", "family", "flags", "quickest"),
    [
        ("AuthenticAMD", 26, "fpu avx2 avx512f", Library.ONEDNN),
        ("AuthenticAMD", 25, "fpu avx2 avx512f", Library.TORCHS),
        ("AuthenticAMD", 26, "fpu avx2", Library.OPENBLAS),
        ("AuthenticAMD", 25, "fpu avx2", Library.OPENBLAS),
        ("AuthenticAMD", 21, "fpu", Library.TORCHS),
        ("GenuineIntel", 26, "fpu avx2 avx512f", Library.TORCHS),
        ("GenuineIntel", 6, "fpu avx2", Library.TORCHS),
    ],
)
def test_other_libraries_multiply_on_amds_cpus_alone(
    maker: str, family: int, flags: str, quickest: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        pytest.skip("this torch has one library only")
    said = tmp_path / "cpuinfo"
    core = f"vendor_id\t: {maker}\ncpu family\t: {family}\nflags\t\t: {flags}\n"
    said.write_text(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}")
    monkeypatch.setattr(products, "_CPU", said)
    monkeypatch.setattr(products, "_numpy_multiplies_by_openblas", lambda: True)
    assert products.library.__wrapped__() is quickest
    monkeypatch.setattr(products, "_numpy_multiplies_by_openblas", lambda: False)
    assert products.library.__wrapped__() is (Library.TORCHS if quickest is Library.OPENBLAS else quickest)
    monkeypatch.setattr(products, "_CPU", tmp_path / "no such file")
    assert products.library.__wrapped__() is Library.TORCHS


@pytest.mark.parametrize(
    ("name", "own", "shared", "serves"),
    [
        ("scipy-openblas", "1", None, True),
        ("openblas", None, "1", True),
        ("scipy-openblas", "4", "1", False),
        ("scipy-openblas", None, None, False),
        ("mkl-sdl", "1", "1", False),
    ],
)
def test_numpys_library_serves_where_it_is_openblas_and_has_one_thread(
    name: str, own: str | None, shared: str | None, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("OPENBLAS_NUM_THREADS", own), ("OMP_NUM_THREADS", shared)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    monkeypatch.setattr(np, "show_config", lambda mode: {"Build Dependencies": {"blas": {"name": name}}})
    assert products._numpy_multiplies_by_openblas() is serves
