"""A backend in one file: ``quantize_mx`` in NumPy, exact in float64.

python -m aten_mx conformance --device cpu --ops quantize_mx --import numpy_backend
"""

import numpy as np
import torch

import aten_mx
from aten_mx.formats import FORMATS
from aten_mx.layout import pack_nibbles

FLOOR, CEIL, EVEN, RCEIL = range(4)
KEY = "CPU"  # an accelerator's would be "PrivateUse1", "XPU", ...


def supports(self, dim, block_size, elem_format, mode, *, swizzle_type):
    """Swizzled scales, and modes of later versions, are left to the emulated kernel."""
    return swizzle_type == 0 and mode in (FLOOR, CEIL, EVEN, RCEIL)


# override: the CPU may have the native kernel already.
@aten_mx.register_kernel("quantize_mx", KEY, supports=supports, override=True)
def quantize(self, dim, block_size, elem_format, mode, *, swizzle_type):
    """Quantize blocks along ``dim``; see ``aten_mx.register_kernel`` for what comes and goes."""
    fmt = FORMATS[elem_format]
    x = self.movedim(dim, -1).float().contiguous()
    blocks = (*x.shape[:-1], x.shape[-1] // block_size, block_size)
    # Bits to float64 by integers: a cast would lose subnormals where the CPU flushes them.
    bits = x.view(torch.int32).numpy().reshape(blocks)
    field, fraction = bits >> 23 & 0xFF, bits & 0x7FFFFF
    value = np.ldexp((fraction + (field > 0) * 2.0**23), np.maximum(field, 1) - 150)
    is_nan = (field == 0xFF).any(-1, keepdims=True)

    amax = value.max(-1, keepdims=True)
    half, exponent = np.frexp(amax)  # amax = half * 2^exponent
    significand = 2 * half  # in [1, 2)
    carry = {
        FLOOR: 0,
        CEIL: significand > 1,
        EVEN: np.floor(significand * 2**fmt.mantissa_bits + 0.5) >= 2 << fmt.mantissa_bits,
        RCEIL: significand > np.ldexp(fmt.max_normal, -fmt.emax),
    }[mode]
    shared = np.where(amax == 0, -127, np.clip(exponent - 1 - fmt.emax + carry, -127, 127))

    # One rounding, to the step between neighbours; below the smallest normal it stays the same.
    element = np.ldexp(np.where(is_nan, 0, value), -shared)
    lowest = 1 - fmt.bias
    power = np.where(element == 0, lowest, np.maximum(np.frexp(element)[1] - 1, lowest))
    code = np.rint(np.ldexp(element, fmt.mantissa_bits - power)).astype(np.int64)
    code = np.minimum(code + (power - lowest << fmt.mantissa_bits), fmt.max_code)
    code = np.where(bits < 0, -code if fmt.twos_complement else code + fmt.sign_bit, code)
    code = np.where(is_nan, fmt.nan_code, code).astype(np.uint8).reshape(x.shape)
    scale = np.where(is_nan, 0xFF, shared + 127).astype(np.uint8)[..., 0]

    payload = torch.from_numpy(code)
    payload = pack_nibbles(payload) if fmt.bits == 4 else payload
    scale = torch.from_numpy(scale).view(torch.float8_e8m0fnu)
    return payload.view(fmt.payload_dtype).movedim(-1, dim), scale.movedim(-1, dim)
