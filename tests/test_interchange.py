"""What leaves the package: saved, exchanged and rearranged outputs keep bytes and dtype."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import aten_mx
from aten_mx.formats import FORMATS

# field-cases 54 to 57 and 62.
X = torch.randn(4, 128, generator=torch.Generator().manual_seed(5))
OUTPUTS = {
    **{name: aten_mx.quantize_mx(X, dtype=name) for name in FORMATS},
    "typed fp4": aten_mx.quantize_mx(X, dtype=torch.float4_e2m1fn_x2),
}
EACH_TENSOR = pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(tensor, id=f"{name}-{part}")
        for name, pair in OUTPUTS.items()
        for part, tensor in zip(("output", "scale"), pair, strict=True)
    ],
)


def assert_same(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))


@EACH_TENSOR
def test_torch_save(tensor: Tensor) -> None:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    assert_same(torch.load(buffer), tensor)


@EACH_TENSOR
def test_safetensors(tensor: Tensor, tmp_path: Path) -> None:
    """By dtype where the file format has it; as bytes for all."""
    file = tmp_path / "tensor.safetensors"
    safetensors.torch.save_file({"bytes": tensor.view(torch.uint8)}, file)
    assert_same(safetensors.torch.load_file(file)["bytes"].view(tensor.dtype), tensor)
    if tensor.dtype is not torch.float4_e2m1fn_x2:
        safetensors.torch.save_file({"tensor": tensor}, file)
        assert_same(safetensors.torch.load_file(file)["tensor"], tensor)


@EACH_TENSOR
def test_dlpack(tensor: Tensor) -> None:
    received = torch.from_dlpack(tensor.view(torch.uint8))
    assert_same(received.view(tensor.dtype), tensor)
    assert received.data_ptr() == tensor.data_ptr()


@EACH_TENSOR
def test_rearranging(tensor: Tensor) -> None:
    """What works for every output kind, typed FP4 included."""
    rows = tensor.split(1)
    assert_same(torch.cat(rows), tensor)
    assert_same(torch.stack(rows).squeeze(1), tensor)
    assert_same(tensor.clone(), tensor)
    assert_same(torch.empty_like(tensor).copy_(tensor), tensor)
    assert_same(tensor[1:3], tensor.view(torch.uint8)[1:3].view(tensor.dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float4_e2m1fn_x2], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (5, 64), (300, 4096)])
def test_the_scales_scaled_mm_counts(dtype: torch.dtype, rows: int, columns: int) -> None:
    """One scale a block of 32 values, not of 32 bytes, padded to tiles (pytorch/pytorch#176357)."""
    output, scale = aten_mx.quantize_mx(
        torch.empty(rows, columns, device="meta"), dtype=dtype, swizzle_type=1
    )
    assert output.dtype is dtype
    assert output.stride(-1) == 1
    blocks = columns // 32
    assert scale.numel() == -(-rows // 128) * 128 * (-(-blocks // 4) * 4)
