"""The MX element formats: one row each, everything else derived from it.

Source: OCP Microscaling Formats (MX) v1.0, section 5.3. A *code* is the n-bit integer that is
stored, its *value* the real number it means before the block's scale is applied.

Imports only torch: the file is part of the patch to PyTorch core as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FLOAT32_BIAS = 127
FLOAT32_MANTISSA_BITS = 23
E8M0_BIAS = 127
E8M0_NAN = 0xFF


@dataclass(frozen=True)
class ElementFormat:
    """One element format.

    Args:
        name: how ``.format`` and the front doors spell it.
        dtype: PyTorch's dtype of the payload, ``None`` where PyTorch has none.
        bits: width of a code.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the fraction field.
        max_code: code of the largest finite magnitude.
        inf_code: code of infinity, ``None`` where the format has none.
        nan_code: code written to every element of a block that holds NaN or Inf; 0 where the
            format has no NaN and the scale alone carries it.
        twos_complement: whether negative codes are two's complement; else sign and magnitude.

    Example::

        >>> fmt = FORMATS["fp8_e4m3"]
        >>> fmt.bias, fmt.emax, fmt.max_normal, fmt.min_normal, fmt.min_subnormal
        (7, 8, 448.0, 0.015625, 0.001953125)
    """

    name: str
    dtype: torch.dtype | None
    bits: int
    exponent_bits: int
    mantissa_bits: int
    max_code: int
    inf_code: int | None = None
    nan_code: int = 0
    twos_complement: bool = False

    @property
    def bias(self) -> int:
        """Exponent bias. A one-bit exponent (INT8) has 1: codes 0 to 127 are then k/64."""
        return max(1, (1 << (self.exponent_bits - 1)) - 1)

    @property
    def emax(self) -> int:
        """Exponent of the largest finite magnitude."""
        return (self.max_code >> self.mantissa_bits) - self.bias

    @property
    def max_mantissa(self) -> int:
        """Fraction field of the largest finite magnitude."""
        return self.max_code & ((1 << self.mantissa_bits) - 1)

    @property
    def max_normal(self) -> float:
        """Largest finite magnitude."""
        significand = (1 << self.mantissa_bits) + self.max_mantissa
        return float(significand * 2.0 ** (self.emax - self.mantissa_bits))

    @property
    def min_normal(self) -> float:
        """Smallest magnitude with full precision."""
        return float(2.0 ** (1 - self.bias))

    @property
    def min_subnormal(self) -> float:
        """Smallest magnitude above zero."""
        return float(2.0 ** (1 - self.bias - self.mantissa_bits))

    @property
    def sign_bit(self) -> int:
        """The code's sign bit."""
        return 1 << (self.bits - 1)

    @property
    def codes_per_byte(self) -> int:
        """Codes that share a byte of the payload; a 6-bit code takes a byte of its own."""
        return 8 // self.bits

    @property
    def payload_dtype(self) -> torch.dtype:
        """Payload dtype of the ``.format`` overloads: raw bytes below eight bits."""
        return self.dtype if self.dtype is not None and self.bits == 8 else torch.uint8


# INT8 is a row like the others because its magnitudes, k/64 for k = 0..127, are those of a float
# with one exponent bit, six fraction bits and bias 1 (OCP: two's complement, implied scale 2^-6).
FORMATS: dict[str, ElementFormat] = {
    fmt.name: fmt
    for fmt in (
        # Then: bits, exponent bits, mantissa bits, max_code, inf_code, nan_code.
        ElementFormat("fp8_e4m3", torch.float8_e4m3fn, 8, 4, 3, 0b0_1111_110, None, 0b0_1111_111),
        ElementFormat("fp8_e5m2", torch.float8_e5m2, 8, 5, 2, 0b0_11110_11, 0x7C, 0b0_11111_11),
        ElementFormat("fp6_e2m3", None, 6, 2, 3, 0b0_11_111),
        ElementFormat("fp6_e3m2", None, 6, 3, 2, 0b0_111_11),
        ElementFormat("fp4_e2m1", torch.float4_e2m1fn_x2, 4, 2, 1, 0b0_11_1),
        ElementFormat("int8", torch.int8, 8, 1, 6, 0b0_1_111111, twos_complement=True),
    )
}

FORMAT_OF_DTYPE: dict[torch.dtype, ElementFormat] = {
    fmt.dtype: fmt for fmt in FORMATS.values() if fmt.dtype is not None
}
