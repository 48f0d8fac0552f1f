"""``torch.compile`` fuses the ops with what is before and after them: still the bytes of eager mode.

Between two operations on 16-bit floats that it fuses, Inductor leaves out the rounding to 16 bits.
A second one lies between each input and the cast or product that made it only where the test has
one operation there: two of them differ from eager mode without these ops too.
"""

from __future__ import annotations

import pytest
import torch
from samples import DEQUANTIZE, QUANTIZE, bytes_of
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
    made = (x * y, x + y, x - y, wide.to(x.dtype), x @ y.mT)
    for i, values in enumerate(made):
        number = i + turn
        fmt = list(FORMATS)[number % len(FORMATS)]
        dim = (number + turn // len(FORMATS)) % 3
        output, out_scale = QUANTIZE.format(values, dim, 32, fmt, (number + turn // 2) % 4)
        back = DEQUANTIZE.format(output, out_scale, dim, 32, fmt, x.dtype)
        results += [output, out_scale, *consumers(back)]
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
    "turn", [pytest.param(turn, marks=pytest.mark.slow if turn else ()) for turn in range(12)]
)
@pytest.mark.parametrize("dtype", SIXTEEN_BIT, ids=str)
def test_fused_with_other_operations(dtype: torch.dtype, turn: int) -> None:
    tensors = operands(dtype)
    got = torch.compile(fused, fullgraph=True)(*tensors, turn)
    expected = fused(*tensors, turn)
    wrong = [
        index
        for index, pair in enumerate(zip(got, expected, strict=True))
        if not torch.equal(*(bytes_of(tensor.contiguous()) for tensor in pair))
    ]
    assert not wrong
