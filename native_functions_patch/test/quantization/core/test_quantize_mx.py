# Owner(s): ["oncall: quantization"]

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

E8M0 = torch.float8_e8m0fnu
DTYPES = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float4_e2m1fn_x2,
    torch.int8,
)
# Largest magnitude of a format, which one block scales to exactly itself.
MAX_NORMAL = {
    "fp8_e4m3": 448.0,
    "fp8_e5m2": 57344.0,
    "fp6_e2m3": 7.5,
    "fp6_e3m2": 28.0,
    "fp4_e2m1": 6.0,
    "int8": 127 / 64,
}


def as_bytes(tensor):
    return tensor.view(torch.uint8)


class TestQuantizeMX(TestCase):
    @parametrize("elem_format", MAX_NORMAL)
    @parametrize("mode", range(4))
    def test_largest_magnitude_is_exact(self, elem_format, mode):
        x = torch.zeros(2, 32)
        x[0, 3] = MAX_NORMAL[elem_format]
        output, scale = torch.quantize_mx(x, -1, 32, elem_format, mode)
        # Byte 127 is 1, and a block of zeros has byte 0. CEIL and EVEN round a
        # significand above one up to the next power of two.
        self.assertEqual(as_bytes(scale)[1].item(), 0)
        if mode in (0, 3):
            self.assertEqual(as_bytes(scale)[0].item(), 127)
            back = torch.dequantize_mx(output, scale, -1, 32, elem_format, torch.float32)
            self.assertEqual(back, x, atol=0, rtol=0)

    def test_packing(self):
        x = torch.tensor([[1.0, 2.0]])
        output, scale = torch.quantize_mx(x, -1, 2, "fp4_e2m1", 3)
        self.assertEqual(output.item(), 0x64)
        self.assertEqual(as_bytes(scale).item(), 126)
        output, _ = torch.quantize_mx(x, -1, 2, torch.float4_e2m1fn_x2, 3)
        self.assertEqual(output.dtype, torch.float4_e2m1fn_x2)
        self.assertEqual(as_bytes(output).item(), 0x64)

    @parametrize("dtype", DTYPES)
    @parametrize("value", (float("inf"), -float("inf"), float("nan")))
    def test_non_finite_block(self, dtype, value):
        x = torch.ones(1, 64)
        x[0, 5] = value
        output, scale = torch.quantize_mx(x, -1, 32, dtype)
        self.assertEqual(as_bytes(scale)[0, 0].item(), 0xFF)
        self.assertNotEqual(as_bytes(scale)[0, 1].item(), 0xFF)
        back = torch.dequantize_mx(output, scale, -1, 32, torch.float32)
        self.assertTrue(back[0, :32].isnan().all())
        self.assertEqual(back[0, 32:], x[0, 32:])

    @parametrize("dtype", DTYPES)
    def test_blocked_dim_is_innermost(self, dtype):
        x = torch.randn(3, 64, 5)
        output, scale = torch.quantize_mx(x, 1, 32, dtype)
        moved = torch.quantize_mx(x.movedim(1, -1), -1, 32, dtype)
        for result, expected in zip((output, scale), moved):
            self.assertEqual(result.stride(1), 1)
            self.assertEqual(as_bytes(result), as_bytes(expected).movedim(-1, 1))

    @parametrize("dtype", DTYPES)
    def test_meta_agrees(self, dtype):
        for x, dim in ((torch.randn(64, 3), 0), (torch.randn(0, 32), 1)):
            for result, meta in zip(
                torch.quantize_mx(x, dim, 32, dtype),
                torch.quantize_mx(x.to("meta"), dim, 32, dtype),
            ):
                self.assertEqual(result.shape, meta.shape)
                self.assertEqual(result.stride(), meta.stride())
                self.assertEqual(result.dtype, meta.dtype)

    def test_not_differentiable(self):
        x = torch.randn(4, 32, requires_grad=True)
        output, scale = torch.quantize_mx(x, -1, 32, torch.float8_e4m3fn)
        self.assertFalse(output.requires_grad)
        self.assertFalse(scale.requires_grad)
        back = torch.dequantize_mx(output, scale, -1, 32, torch.float32)
        self.assertFalse(back.requires_grad)

    def test_errors(self):
        x = torch.randn(4, 64)
        e4m3 = torch.float8_e4m3fn
        with self.assertRaisesRegex(TypeError, r"got torch\.float64"):
            torch.quantize_mx(x.double(), -1, 32, e4m3)
        with self.assertRaisesRegex(IndexError, "dim must be in"):
            torch.quantize_mx(x, 2, 32, e4m3)
        with self.assertRaisesRegex(ValueError, "must be a multiple of block_size 48"):
            torch.quantize_mx(x, -1, 48, e4m3)
        with self.assertRaisesRegex(ValueError, "block_size must be even"):
            torch.quantize_mx(x, -1, 1, torch.float4_e2m1fn_x2)
        output, scale = torch.quantize_mx(x, -1, 32, e4m3)
        with self.assertRaisesRegex(TypeError, "view it"):
            torch.dequantize_mx(output, as_bytes(scale), -1, 32, torch.float32)

    def test_method(self):
        x = torch.randn(4, 64)
        output, scale = x.quantize_mx(-1, 32, torch.int8)
        expected = torch.quantize_mx(x, -1, 32, torch.int8)
        self.assertEqual(output, expected[0])
        self.assertEqual(as_bytes(scale), as_bytes(expected[1]))
        self.assertEqual(
            output.dequantize_mx(scale, -1, 32, torch.float32),
            torch.dequantize_mx(*expected, -1, 32, torch.float32),
        )


instantiate_parametrized_tests(TestQuantizeMX)

if __name__ == "__main__":
    run_tests()
