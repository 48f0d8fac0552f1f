"""Compares tensors of any device by their bytes, and says where they differ."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_SHOWN = 8  # numbers of a block in a message


def bits(tensor: Tensor) -> Tensor:
    """The bits as integers on the CPU; float8_e8m0fnu and float4_e2m1fn_x2 have few other ops."""
    return tensor.detach().view(_INTEGER_OF_SIZE[tensor.element_size()]).cpu()


def hexadecimal(numbers: Tensor) -> str:
    """The bits of a row of numbers, shortened."""
    digits = 2 * numbers.element_size()
    mask = (1 << 4 * digits) - 1
    shown = [f"{int(number) & mask:0{digits}x}" for number in numbers.flatten()[:_SHOWN]]
    return " ".join(shown) + (" ..." if numbers.numel() > _SHOWN else "")


def description(tensor: Tensor) -> str:
    """What a tensor is, without its values."""
    return f"{tensor.dtype}{list(tensor.shape)} strides {list(tensor.stride())}"


def same_kind(got: Sequence[Tensor], want: Sequence[Tensor], device: torch.device) -> str:
    """The first difference in number, dtype, shape, stride or device; empty if there is none."""
    if len(got) != len(want):
        return f"{len(got)} outputs, expected {len(want)}"
    for index, (actual, expected) in enumerate(zip(got, want, strict=True)):
        if description(actual) != description(expected):
            return f"output {index} is {description(actual)}, expected {description(expected)}"
        if actual.device.type != device.type:
            return f"output {index} is on {actual.device}, expected {device}"
        if actual.requires_grad:
            return f"output {index} requires grad"
    return ""


def quantize_mismatch(x: Tensor, dim: int, got: Sequence[Tensor], want: Sequence[Tensor]) -> str:
    """The first block of ``x`` whose payload or scale differs, with bits of input and results."""
    blocks = want[1].numel()
    if blocks == 0:
        return ""
    rows = [bits(t.movedim(dim, -1)).reshape(blocks, -1) for t in (x, *got, *want)]
    source, got_payload, got_scale, payload, scale = rows
    wrong = ((got_payload != payload).any(-1) | (got_scale != scale).any(-1)).nonzero().flatten()
    if not len(wrong):
        return ""
    block = int(wrong[0])
    first = int((got_payload[block] != payload[block]).int().argmax())
    return (
        f"{len(wrong)} of {blocks} blocks differ; block {block}: input "
        f"{hexadecimal(source[block])}; scale {hexadecimal(got_scale[block])}, expected "
        f"{hexadecimal(scale[block])}; codes from byte {first}: "
        f"{hexadecimal(got_payload[block, first:])}, expected {hexadecimal(payload[block, first:])}"
    )


def byte_mismatch(got: Sequence[Tensor], want: Sequence[Tensor]) -> str:
    """The first element whose bits differ, over all outputs."""
    for index, (actual, expected) in enumerate(zip(got, want, strict=True)):
        wrong = (bits(actual) != bits(expected)).nonzero()
        if len(wrong):
            where = tuple(int(i) for i in wrong[0])
            return (
                f"{len(wrong)} of {actual.numel()} elements of output {index} differ; at {where}: "
                f"{hexadecimal(bits(actual)[where])}, expected {hexadecimal(bits(expected)[where])}"
            )
    return ""


def dequantize_mismatch(payload: Tensor, scale: Tensor, dim: int, got: Tensor, want: Tensor) -> str:
    """The first value that differs, with its block's payload and scale."""
    blocks = scale.numel()
    if blocks == 0:
        return ""
    rows = [bits(t.movedim(dim, -1)).reshape(blocks, -1) for t in (payload, scale, got, want)]
    codes, scale_bytes, got_bits, want_bits = rows
    wrong = (got_bits != want_bits).any(-1).nonzero().flatten()
    if not len(wrong):
        return ""
    block = int(wrong[0])
    first = int((got_bits[block] != want_bits[block]).int().argmax())
    code = first * codes.shape[-1] // got_bits.shape[-1]
    return (
        f"{len(wrong)} of {blocks} blocks differ; block {block}: scale "
        f"{hexadecimal(scale_bytes[block])}, codes from byte {code}: "
        f"{hexadecimal(codes[block, code:])}; values {hexadecimal(got_bits[block, first:])}, "
        f"expected {hexadecimal(want_bits[block, first:])}"
    )
