"""The scale modes: how a block's shared exponent follows from its largest magnitude."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from torch import Tensor, bitwise_right_shift

from aten_mx.formats import FLOAT32_MANTISSA_BITS, ElementFormat


class ScaleCalculationMode(IntEnum):
    """Rule for the shared exponent ``X`` of a block whose largest magnitude is ``amax``.

    Each of these rounds ``amax`` up to a power of two or not, and then takes
    ``floor(log2(amax)) - emax``. ``X`` is clamped to [-127, 127] afterwards.

    Example::

        >>> import aten_mx
        >>> aten_mx.ScaleCalculationMode.RCEIL.value
        3
    """

    FLOOR = 0
    """``floor(log2 amax) - emax``. OCP MX v1.0, section 6.3. May saturate the largest elements."""

    CEIL = 1
    """``ceil(log2 amax) - emax``. Never saturates; costs up to one bit of range."""

    EVEN = 2
    """As FLOOR after rounding ``amax`` half up to the format's mantissa bits. TorchAO's EVEN."""

    RCEIL = 3
    """``ceil(log2(amax / max_normal))``: the smallest scale that does not saturate.
    cuBLAS, TransformerEngine, PTX ``cvt.rp.ue8m0x2``."""

    def rounding_addend(self, fmt: ElementFormat) -> int:
        """What to add to ``amax``'s float32 bits so that a carry into the exponent rounds it up.

        The fraction field has 23 bits; the carry happens when the field reaches ``2^23 - addend``.

        Args:
            fmt: the element format; EVEN depends on its mantissa bits, RCEIL on its maximum.

        Returns:
            An integer in [0, 2^23).
        """
        below_carry = (1 << FLOAT32_MANTISSA_BITS) - 1
        dropped_bits = FLOAT32_MANTISSA_BITS - fmt.mantissa_bits
        return {
            ScaleCalculationMode.FLOOR: 0,
            ScaleCalculationMode.CEIL: below_carry,
            ScaleCalculationMode.EVEN: 1 << (dropped_bits - 1),
            ScaleCalculationMode.RCEIL: below_carry - (fmt.max_mantissa << dropped_bits),
        }[self]

    def biased_exponent(self, amax: Tensor, fmt: ElementFormat) -> Tensor:
        """``X + 127`` before it is clamped. A mode that no addend expresses has its branch here.

        Args:
            amax: float32 bits of the largest magnitudes, as int32. Where a subnormal one counts,
                its exponent field is what it would be in a wider format: zero or negative.
            fmt: the element format.

        Returns:
            int32, of the shape of ``amax``.
        """
        rounded = amax + self.rounding_addend(fmt)
        return bitwise_right_shift(rounded, FLOAT32_MANTISSA_BITS) - fmt.emax

    @classmethod
    def parse(cls, mode: Any) -> ScaleCalculationMode:
        """The mode that ``mode`` names.

        Args:
            mode: a member, its int, its name in lower case, or an enum member whose ``value`` is
                that name (TorchAO's ``ScaleCalculationMode``).

        Raises:
            ValueError: nothing of that name or number.

        Example::

            >>> from aten_mx import ScaleCalculationMode
            >>> ScaleCalculationMode.parse("even")
            <ScaleCalculationMode.EVEN: 2>
        """
        value = getattr(mode, "value", mode)
        for member in _MODES:
            if value == member.value or value == member.name.lower():
                return member
        raise ValueError(unknown_mode_message(value))


_MODES = tuple(ScaleCalculationMode)  # Dynamo of torch 2.11 can't iterate over the class itself


def unknown_mode_message(mode: object) -> str:
    """Error text for a scale mode that does not exist."""
    known = ", ".join(f"{member.value} ({member.name.lower()})" for member in _MODES)
    return f"scale_calculation_mode must be one of {known}, got {mode}"
