"""``torch.compile`` fuses the ops with what is before and after them: the bytes stay the same.

Between two operations on 16-bit floats that it fuses, Inductor leaves out the rounding to 16 bits.
So one operation makes each input here: after two, the input itself differs from eager mode's.
"""

from __future__ import annotations

import pytest
import torch
from sample_calls import DEQUANTIZE, QUANTIZE, bytes_of
from torch import Tensor

from aten_mx.formats import FORMATS

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # The price of its force_disable_caches: PyTorch 2.13 warns that it is set.
    pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled:UserWarning"),
]

SHAPE = (32, 32, 64)
SIXTEEN_BIT = (torch.bfloat16, torch.float16)


def consumers(values: Tensor) -> list[Tensor]:
    """What a compiler may fuse after a result."""
    return [values.float(), values * 3, values.view(torch.int16)]


def fused(
    x: Tensor, y: Tensor, wide: Tensor, payload: Tensor, scale: Tensor, turn: int
) -> list[Tensor]:
    """Both ops behind and before other operations; formats, modes and dims rotate with ``turn``."""
    results = []
    cast = wide.to(x.dtype)
    made = (x + y, cast, x - y) if turn % 2 else (x * y, cast, x @ y.mT)
    for i, values in enumerate(made):
        number = i + turn
        fmt = list(FORMATS)[number % len(FORMATS)]
        dim = (number + turn // len(FORMATS)) % 3
        output, out_scale = QUANTIZE.format(values, dim, 32, fmt, (number + turn // 2) % 4)
        results += [output, out_scale]
    back = DEQUANTIZE.format(output, out_scale, dim, 32, fmt, x.dtype)
    results += consumers(back)
    for i in (0, 3):
        fmt = list(FORMATS.values())[(i + turn) % len(FORMATS)]
        codes = payload[..., ::2].contiguous() if fmt.codes_per_byte == 2 else payload
        codes = codes.view(fmt.payload_dtype)
        results += consumers(DEQUANTIZE.format(codes, scale, -1, 32, fmt.name, x.dtype))
    return results


def operands(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Numbers of many magnitudes, and scales under which float16 overflows and is subnormal."""
    generator = torch.Generator().manual_seed(12)
    spread = torch.arange(-16, 16)[:, None, None].exp2()
    wide = torch.randn(SHAPE, generator=generator) * spread
    x, y = (torch.randn(SHAPE, generator=generator) * spread.sqrt() for _ in range(2))
    payload = torch.randint(256, SHAPE, dtype=torch.uint8, generator=generator)
    scale = torch.randint(90, 160, (32, 32, 2), dtype=torch.uint8, generator=generator)
    scale[0, 0], scale[0, 1] = 0, 255
    return x.to(dtype), y.to(dtype), wide, payload, scale.view(torch.float8_e8m0fnu)


@pytest.mark.proves("emulated, compiled")
@pytest.mark.parametrize(
    "turn", [pytest.param(turn, marks=pytest.mark.slow if turn > 1 else ()) for turn in range(24)]
)
def test_fused_with_other_operations(turn: int) -> None:
    tensors = operands(SIXTEEN_BIT[turn // 2 % 2 if turn > 1 else turn])
    got = torch.compile(fused, fullgraph=True)(*tensors, turn)
    expected = fused(*tensors, turn)
    wrong = [
        index
        for index, pair in enumerate(zip(got, expected, strict=True))
        if not torch.equal(*map(comparable, pair))
    ]
    assert not wrong


def comparable(tensor: Tensor) -> Tensor:
    """Bytes, with one NaN: which one another operation makes of ours is its own affair."""
    if tensor.is_floating_point() and tensor.itemsize > 1:
        tensor = tensor.masked_fill(tensor.isnan(), torch.nan)
    return bytes_of(tensor.contiguous())
