"""What leaves the package: saved, exchanged and rearranged outputs keep bytes and dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import case
from torch import Tensor

import aten_mx
from aten_mx.formats import FORMATS

# Inputs that public reports named.
X = torch.randn(4, 128, generator=torch.Generator().manual_seed(5))
DTYPES = {
    **{name: name for name in FORMATS},
    "typed fp4": torch.float4_e2m1fn_x2,
}


@functools.cache
def outputs() -> dict[str, Tensor]:
    """Payloads and scales of every dtype, and swizzled scales."""
    pairs = {name: aten_mx.quantize_mx(X, dtype=dtype) for name, dtype in DTYPES.items()}
    pairs["swizzled"] = aten_mx.quantize_mx(X, swizzle_type=1)
    return {
        f"{name}, {part}": tensor
        for name, pair in pairs.items()
        for part, tensor in zip(("output", "scale"), pair, strict=True)
    }


def check_each(check: Callable[[Tensor], None]) -> None:
    for name, tensor in outputs().items():
        with case(name):
            check(tensor)


def assert_same_bytes(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


def test_torch_save(tmp_path: Path) -> None:
    def check(tensor: Tensor) -> None:
        file = tmp_path / "tensor.pt"
        torch.save(tensor, file)
        for mmap in (False, True):
            assert_same_bytes(torch.load(file, mmap=mmap), tensor)
        file.unlink()

    check_each(check)


def test_safetensors(tmp_path: Path) -> None:
    """By dtype where the file format has it; as bytes for all."""

    def check(tensor: Tensor) -> None:
        file = tmp_path / "tensor.safetensors"
        safetensors.torch.save_file({"bytes": tensor.view(torch.uint8)}, file)
        assert_same_bytes(safetensors.torch.load_file(file)["bytes"].view(tensor.dtype), tensor)
        if tensor.dtype is not torch.float4_e2m1fn_x2:
            safetensors.torch.save_file({"tensor": tensor}, file)
            assert_same_bytes(safetensors.torch.load_file(file)["tensor"], tensor)

    check_each(check)


def test_dlpack() -> None:
    """By dtype; as bytes for consumers that have none of these dtypes, NumPy among them."""

    def check(tensor: Tensor) -> None:
        for received in (
            torch.from_dlpack(tensor),
            torch.from_dlpack(tensor.view(torch.uint8)).view(tensor.dtype),
            torch.from_numpy(tensor.view(torch.uint8).numpy()).view(tensor.dtype),
        ):
            assert_same_bytes(received, tensor)
            assert received.data_ptr() == tensor.data_ptr()

    check_each(check)


class Stored(torch.nn.Module):
    """A module with a quantized weight."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.register_buffer("tensor", tensor)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, self.tensor


def exported(module: torch.nn.Module, x: Tensor, file: Path) -> Tensor:
    """What ``module`` gives for ``x`` once it has been exported to ``file`` and loaded again."""
    torch.export.save(torch.export.export(module, (x,)), file)
    results: Tensor = torch.export.load(file).module()(x)
    return results


def test_export_of_stored_tensors(tmp_path: Path) -> None:
    """A typed float4 tensor goes as bytes, which the module views."""

    def check(tensor: Tensor) -> None:
        if tensor.dtype is torch.float4_e2m1fn_x2:
            with pytest.raises(KeyError, match="float4_e2m1fn_x2"):
                exported(Stored(tensor), X, tmp_path / "program.pt2")
            tensor = tensor.view(torch.uint8)
        _, stored = exported(Stored(tensor), X, tmp_path / "program.pt2")
        assert_same_bytes(stored, tensor)

    check_each(check)


class QuantizeAll(torch.nn.Module):
    """Gives the payload and the scale of every format."""

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [aten_mx.quantize_mx(x, dtype=name) for name in FORMATS]


def test_export_of_each_format(tmp_path: Path) -> None:
    """``.format``; that the base overload's typed float4 cannot, ``test_export.py`` shows."""
    file = tmp_path / "program.pt2"
    torch.export.save(torch.export.export(QuantizeAll(), (X,)), file)
    for name, pair in zip(FORMATS, torch.export.load(file).module()(X), strict=True):
        for part, tensor in zip(("output", "scale"), pair, strict=True):
            assert_same_bytes(tensor, outputs()[f"{name}, {part}"])


@pytest.mark.parametrize("dtype", ["fp8_e4m3", torch.float4_e2m1fn_x2], ids=str)
def test_the_layout_along_dim_0(dtype: str | torch.dtype, tmp_path: Path) -> None:
    """torch.save and DLPack keep strides; safetensors takes contiguous tensors only, such as the
    one with the blocked dimension last."""
    for tensor in aten_mx.quantize_mx(X.t(), 0, dtype=dtype):
        torch.save(tensor, tmp_path / "tensor.pt")
        moved = tensor.view(torch.uint8).movedim(0, -1)
        with pytest.raises(ValueError, match="non contiguous"):
            safetensors.torch.save({"bytes": tensor.view(torch.uint8)})
        data = safetensors.torch.load(safetensors.torch.save({"bytes": moved}))["bytes"]
        for received in (
            torch.load(tmp_path / "tensor.pt"),
            torch.from_dlpack(tensor),
            data.movedim(-1, 0).view(tensor.dtype),
        ):
            assert_same_bytes(received, tensor)
            assert received.stride() == tensor.stride()


def test_rearranging() -> None:
    """What works for every output kind, typed FP4 included."""

    def check(tensor: Tensor) -> None:
        rows = tensor.split(1)
        assert_same_bytes(torch.cat(rows), tensor)
        assert_same_bytes(torch.stack(rows).squeeze(1), tensor)
        assert_same_bytes(tensor.clone(), tensor)
        assert_same_bytes(torch.empty_like(tensor).copy_(tensor), tensor)
        assert_same_bytes(tensor[1:3], tensor.view(torch.uint8)[1:3].view(tensor.dtype))

    check_each(check)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (5, 64), (300, 4096)])
def test_the_scales_scaled_mm_counts(dtype: torch.dtype, rows: int, columns: int) -> None:
    """One scale per 32 values, not per 32 bytes, padded to tiles (pytorch/pytorch#176357)."""
    output, scale = aten_mx.quantize_mx(
        torch.empty(rows, columns, device="meta"), dtype=dtype, swizzle_type=1
    )
    assert output.dtype is dtype
    assert output.stride(-1) == 1
    blocks = columns // 32
    assert scale.numel() == -(-rows // 128) * 128 * (-(-blocks // 4) * 4)
