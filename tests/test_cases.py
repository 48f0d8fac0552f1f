"""The named byte cases through both overloads of both ops; all mismatches of a group at once."""

import itertools

import numpy as np
import pytest
import torch
from cases import (
    BLOCK_SIZE,
    DTYPES,
    PAYLOAD_DTYPES,
    SCALAR_TYPES,
    DequantizeCase,
    QuantizeCase,
    to_bits,
    to_payload,
    to_tensor,
)
from cases_all import QUANTIZE_CASES
from cases_dequantize import DEQUANTIZE_CASES
from oracle import FORMATS, MODES, Array, decode_float
from support import case as each_case
from under_test import DEVICE, on_device

import aten_mx  # noqa: F401  (registers the ops)

pytestmark = pytest.mark.contract

quantize_mx = torch.ops.aten_mx.quantize_mx
dequantize_mx = torch.ops.aten_mx.dequantize_mx


def hexadecimal(row: Array) -> str:
    """The bits of a row, shortened to the first eight numbers."""
    digits = 2 * row.dtype.itemsize
    return " ".join(f"{int(number):0{digits}x}" for number in row[:8])


def describe(case: QuantizeCase | DequantizeCase, how: str, *pairs: tuple[Array, Array]) -> str:
    """One line for a mismatch: which row, through which call, what came and what should have."""
    actual = " / ".join(hexadecimal(actual.ravel()) for actual, _ in pairs)
    expected = " / ".join(hexadecimal(expected.ravel()) for _, expected in pairs)
    return f"{case.name} ({case.source}), {how}: got {actual}, expected {expected}"


@pytest.mark.proves("under test", "quantize_mx")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_quantize_cases(fmt: str, mode: str, dtype: str) -> None:
    """All rows of a combination as one matrix, one row each, blocked along either dimension."""
    cases = [case for case in QUANTIZE_CASES if case.applies(fmt, mode, dtype)]
    assert cases, f"tests/cases_*.py has no row of {fmt}, {mode}, {dtype}"
    bits = np.stack([case.block(dtype) for case in cases])
    payload = to_payload(np.stack([case.block_codes() for case in cases]), fmt)
    scale = np.array([[case.scale] for case in cases], np.uint8)
    x = to_tensor(bits, DTYPES[dtype])

    def call(dim: int, overload: str) -> tuple[Array, Array]:
        blocked = x if dim == -1 else x.t()
        if overload == "format":
            output, scale = quantize_mx.format(blocked, dim, BLOCK_SIZE, fmt, MODES[mode])
            assert output.dtype == PAYLOAD_DTYPES[fmt]
        else:
            output, scale = quantize_mx(blocked, dim, BLOCK_SIZE, SCALAR_TYPES[fmt], MODES[mode])
            assert output.dtype == SCALAR_TYPES[fmt]
        assert scale.dtype == torch.float8_e8m0fnu
        return (
            (to_bits(output), to_bits(scale))
            if dim == -1
            else (to_bits(output).T, to_bits(scale).T)
        )

    overloads = ["format", "dtype"] if fmt in SCALAR_TYPES else ["format"]
    wrong = []
    for dim, overload in itertools.product((-1, 0), overloads):
        output, output_scale = call(dim, overload)
        assert output.shape == payload.shape
        for row, case in enumerate(cases):
            pairs = (output_scale[row], scale[row]), (output[row], payload[row])
            if not all(np.array_equal(actual, expected) for actual, expected in pairs):
                how = f"{overload} dim={dim}, input {hexadecimal(bits[row])}, scale / payload"
                wrong.append(describe(case, how, *pairs))
    assert not wrong, "\n".join(wrong)


@pytest.mark.proves("under test", "dequantize_mx")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_cases(fmt: str, dtype: str) -> None:
    """As above: the rows of a format and result dtype as one matrix."""
    cases = [case for case in DEQUANTIZE_CASES if (case.fmt, case.dtype) == (fmt, dtype)]
    assert cases, f"tests/cases_dequantize.py has no row of {fmt}, {dtype}"
    payload = to_payload(np.stack([case.block_codes() for case in cases]), fmt)
    scale = to_tensor(np.array([[case.scale] for case in cases], np.uint8), torch.float8_e8m0fnu)
    calls = {
        "format": lambda q, scale, dim: dequantize_mx.format(
            q.view(PAYLOAD_DTYPES[fmt]), scale, dim, BLOCK_SIZE, fmt, DTYPES[dtype]
        )
    }
    if fmt in SCALAR_TYPES:
        calls["dtype"] = lambda q, scale, dim: dequantize_mx(
            q.view(SCALAR_TYPES[fmt]), scale, dim, BLOCK_SIZE, DTYPES[dtype]
        )
    q = to_tensor(payload, torch.uint8)
    wrong = []
    for name, call in calls.items():
        for dim, output in ((-1, call(q, scale, -1)), (0, call(q.t(), scale.t(), 0).t())):
            bits = to_bits(output)
            for row, case in enumerate(cases):
                if not np.array_equal(bits[row], case.block()):
                    how = f"{name} dim={dim}, codes {hexadecimal(case.block_codes())}"
                    wrong.append(describe(case, how, (bits[row], case.block())))
    assert not wrong, "\n".join(wrong)


def test_packing_of_fp4() -> None:
    """[1, 2] at scale 1 is 0x42: the even element along `dim` in the low nibble."""
    x = torch.tensor([[1.0, 2.0, 4.0, -0.5], [6.0, 3.0, -0.0, 1.5]], device=DEVICE)
    output, scale = quantize_mx(x, -1, 4, torch.float4_e2m1fn_x2)
    # codes 2 4 6 9 and 7 5 8 3
    np.testing.assert_array_equal(to_bits(output), [[0x42, 0x96], [0x57, 0x38]])
    np.testing.assert_array_equal(to_bits(scale), [[127], [127]])

    # Along dim 0 the columns pack: amax 6, 3, 4, 1.5 -> X = 0, -1, 0, -2.
    # 1, 6 | 4, 6 (2 and 3 are 4 and 6) | 4, -0 | -2, 6
    output, scale = quantize_mx(x, 0, 2, torch.float4_e2m1fn_x2)
    np.testing.assert_array_equal(to_bits(output), [[0x72, 0x76, 0x86, 0x7C]])
    np.testing.assert_array_equal(to_bits(scale), [[127, 126, 127, 125]])


def test_fp6_is_one_code_a_byte() -> None:
    x = torch.tensor([0.125, 0.25, 0.5, -7.5], device=DEVICE)
    output, scale = quantize_mx.format(x, 0, 4, "fp6_e2m3")
    np.testing.assert_array_equal(to_bits(output), [0x01, 0x02, 0x04, 0x3F])
    np.testing.assert_array_equal(to_bits(scale), [127])


@pytest.mark.parametrize("mode", MODES)
def test_small_ramp_stays_finite(mode: str) -> None:
    """flashinfer#2440: 1e-40 to 5e-36 in bfloat16 gave NaN; each value within half a step now."""
    x = torch.linspace(1e-40, 5e-36, BLOCK_SIZE, dtype=torch.float64).to(torch.bfloat16)
    x = on_device(x)
    output, scale = quantize_mx(x, 0, BLOCK_SIZE, torch.float8_e4m3fn, MODES[mode])
    assert to_bits(scale).tolist() == [2 if mode == "ceil" else 1]
    y = decode_float(to_bits(dequantize_mx(output, scale, 0, BLOCK_SIZE, torch.float32)), "f32")
    x = decode_float(to_bits(x), "bf16")
    unit = 2.0 ** (int(to_bits(scale)[0]) - 127)
    exponent = np.maximum(np.frexp(np.maximum(x, y) / unit)[1] - 1, -6)  # -6: E4M3's subnormals
    assert (np.abs(y - x) <= unit * 2.0 ** (exponent - 3 - 1)).all()


def test_one_scale_per_block() -> None:
    """Blocks do not affect each other: a NaN, an Inf and a large number beside ordinary blocks."""
    for fmt, block_size in itertools.product(FORMATS, (2, 16, 32, 64)):
        with each_case(fmt, block_size):
            check_one_scale_per_block(fmt, block_size)


def check_one_scale_per_block(fmt: str, block_size: int) -> None:
    x = torch.ones(3, 4 * block_size)
    x[0, block_size] = float("nan")
    x[1, 3 * block_size - 1] = float("-inf")
    x[2, 0] = 2.0**100
    output, scale = quantize_mx.format(on_device(x), 1, block_size, fmt)
    one = 127 - FORMATS[fmt].emax
    expected = [[one, 255, one, one], [one, one, 255, one], [one + 100, one, one, one]]
    np.testing.assert_array_equal(to_bits(scale), expected)
    y = dequantize_mx.format(output, scale, 1, block_size, fmt, torch.float32)
    blocks = y.cpu().unflatten(1, (4, block_size))
    ordinary = torch.tensor(expected) == one
    assert (blocks[ordinary] == 1).all()
    assert blocks[torch.tensor(expected) == 255].isnan().all()


# --- calls that have no right bytes ---------------------------------------------------------------


def test_float64_is_refused() -> None:
    """triton#11897: through float32 it would round twice, 1.0625 + 2^-40 to 1.0."""
    x = torch.full((32,), 1.0625 + 2.0**-40, dtype=torch.float64, device=DEVICE)
    with pytest.raises(TypeError, match="float64"):
        quantize_mx(x, 0, BLOCK_SIZE, torch.float8_e4m3fn)


@pytest.mark.parametrize("scale_dtype", [torch.uint8, torch.float32])
def test_scale_bytes_are_no_numbers(scale_dtype: torch.dtype) -> None:
    """omlx#2159: a scale byte multiplied as the number it looks like was 450,000 times wrong."""
    q, scale = quantize_mx(torch.ones(2, 32, device=DEVICE), 1, BLOCK_SIZE, torch.float8_e4m3fn)
    wrong = scale.view(torch.uint8).to(scale_dtype)
    with pytest.raises(TypeError, match=str(scale_dtype)):
        dequantize_mx(q, wrong, 1, BLOCK_SIZE, torch.float32)


@pytest.mark.parametrize(
    ("size", "block_size"),
    [(33, 32), (31, 32), (1, 32), (64, 0), (64, -32), (64, 33), (64, 128), (64, 4096)],
)
def test_size_is_a_multiple_of_the_block_size(size: int, block_size: int) -> None:
    """TransformerEngine#2966: never a block that is short, or one that mixes rows."""
    with pytest.raises(ValueError, match=rf"(?<!\d){block_size}\b"):
        quantize_mx(torch.ones(3, size, device=DEVICE), 1, block_size, torch.float8_e4m3fn)
