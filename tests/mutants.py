"""Deliberately wrong kernels: the emulated kernel with one piece of its source replaced.

Each breaks one rule of the specification; the conformance kit must catch every one of them.
"""

from __future__ import annotations

import inspect
import types
from typing import NamedTuple

from aten_mx import emulated


class Mutant(NamedTuple):
    """``old`` stands once in the emulated kernel's source; ``new`` makes it wrong."""

    op: str
    old: str
    new: str

    def kernel(self) -> types.FunctionType:
        """The wrong kernel, with the signature of a registered one."""
        source = inspect.getsource(emulated)
        assert source.count(self.old) == 1, f"{self.old!r} stands {source.count(self.old)} times"
        module = types.ModuleType("mutant")
        exec(compile(source.replace(self.old, self.new), "mutant", "exec"), module.__dict__)
        return getattr(module, self.op)


Q, D = "quantize_mx", "dequantize_mx"


def _mode(name: str, change: str) -> Mutant:
    changed = f"finite + ({change} if call.mode.name == {name!r} else 0)"
    return Mutant(Q, "biased_exponent(finite,", f"biased_exponent({changed},")


MUTANTS = {
    # specification.md, 3.1 and 3.2: the block maximum, NaN and Inf.
    "the first value is not in the maximum": Mutant(
        Q, "_block_maximum(absolute)", "_block_maximum(absolute[..., 1:])"
    ),
    "int8: the first value is not in the maximum": Mutant(
        Q, "_block_maximum(magnitude)", "_block_maximum(magnitude[..., 1:])"
    ),
    "a NaN is ignored": Mutant(
        Q, "_block_maximum(absolute)", "_block_maximum(absolute.nan_to_num(0, torch.inf))"
    ),
    "Inf is taken for a number": Mutant(
        Q,
        "torch.where(amax > _MAX_FINITE, E8M0_NAN, byte)",
        "torch.where(amax > _EXPONENT, E8M0_NAN, byte)",
    ),
    "codes of a NaN block are left": Mutant(
        Q, "codes.masked_fill_(scale_byte == E8M0_NAN, fmt.nan_code)", "pass"
    ),
    # Rule 3: the four modes, zero blocks, the clamp.
    "floor rounds up": _mode("FLOOR", "1 << 20"),
    "ceil at a power of two": _mode("CEIL", "1"),
    "ceil just above a power of two": _mode("CEIL", "-1"),
    "even rounds half down": _mode("EVEN", "-1"),
    "rceil saturates at the top": _mode("RCEIL", "-1"),
    "rceil goes up at max_normal": _mode("RCEIL", "1"),
    "a zero block has scale 1": Mutant(
        Q,
        "torch.where(amax > _MAX_FINITE, E8M0_NAN, byte)",
        "torch.where(amax > _MAX_FINITE, E8M0_NAN, torch.where(amax == 0, 127, byte))",
    ),
    "finite input gives scale 0xFF": Mutant(Q, "clamp(0, 2 * E8M0_BIAS)", "clamp(0, 255)"),
    "scale byte 0 is never used": Mutant(Q, "clamp(0, 2 * E8M0_BIAS)", "clamp(1, 2 * E8M0_BIAS)"),
    "a subnormal maximum is flushed": Mutant(
        Q, "torch.where(amax < _MIN_NORMAL, subnormal, ", "torch.where(amax < 0, subnormal, "
    ),
    # Rule 4: the bias.
    "the scale is off by one": Mutant(
        Q, "biased_exponent(finite, call.fmt)", "biased_exponent(finite, call.fmt).add(1)"
    ),
    # Rule 5: rounding, saturation, signs.
    "ties go up": Mutant(
        Q,
        "    w.add_(ulp, alpha=2.0**dropped_bits)",
        "    w_bits.add_(1); w.add_(ulp, alpha=2.0**dropped_bits)",
    ),
    "subnormal elements are lost": Mutant(Q, "    w.clamp_max_(scratch)", "    pass"),
    "no saturation": Mutant(Q, ".clamp_max_(fmt.max_code)", ".clamp_max_(fmt.sign_bit - 1)"),
    "int8 reaches -128": Mutant(
        Q,
        "return codes.sub_(constant).clamp_max_(fmt.max_code)",
        "return codes.sub_(constant).clamp_max_(fmt.max_code + (1 if fmt.twos_complement else 0))",
    ),
    "minus zero loses its sign": Mutant(
        Q,
        "codes.add_(negative, alpha=fmt.sign_bit)",
        "codes.add_(negative & (codes > 0), alpha=fmt.sign_bit)",
    ),
    "the input is rounded to bfloat16 first": Mutant(
        Q,
        ".view(values.dtype).to(torch.float32)",
        ".view(values.dtype).to(torch.bfloat16).to(torch.float32)",
    ),
    "the input is changed": Mutant(
        Q,
        "    values = self.detach()",
        "    self.view(torch.uint8).add_(1); values = self.detach()",
    ),
    # specification.md, 5: layout.
    "nibbles are swapped": Mutant(
        Q,
        "payload = pack_nibbles(payload)",
        "payload = pack_nibbles(payload.unflatten(-1, (-1, 2)).flip(-1).flatten(-2))",
    ),
    "the swizzle is another": Mutant(
        Q, "_swizzle(scale)", "_swizzle(scale).unflatten(-1, (-1, 4)).flip(-2).flatten(-2)"
    ),
    "outputs are contiguous": Mutant(
        Q,
        "        _as_output(payload, call.output),",
        "        _as_output(payload, call.output).contiguous(),",
    ),
    # specification.md, 4: dequantization.
    "scale 0xFF is a number": Mutant(
        D, "scale_bytes == E8M0_NAN, _NAN_BITS", "scale_bytes > E8M0_NAN, _NAN_BITS"
    ),
    "the NaN is another": Mutant(D, "_QUIET_NAN = 0x7FC00000", "_QUIET_NAN = 0x7FC00001"),
    "scale byte 0 is zero": Mutant(
        D,
        "rounded.view(call.dtype)",
        "rounded.masked_fill_(scale_bytes == 0, 0).view(call.dtype)",
    ),
    "subnormal codes read as normal": Mutant(D, "    w.clamp_max_(scratch)", "    pass"),
    "bits 6 and 7 of FP6 count": Mutant(D, "codes.bitwise_and_(2 * fmt.sign_bit - 1)", "pass"),
    "bfloat16 is cut off": Mutant(
        D, "shift_right(bits + 0x7FFF + tie, 16)", "shift_right(bits, 16)"
    ),
    "Inf is the largest number": Mutant(D, "bits.masked_fill_(is_inf, _EXPONENT)", "pass"),
    "overflow is clamped": Mutant(
        D, "w_bits.clamp_max_(_EXPONENT - exponent", "w_bits.clamp_max_(_MAX_FINITE - exponent"
    ),
}
