"""Named byte cases: the rows' types, and the way from bytes to tensors and back.

The rows themselves are in ``cases_scale.py`` (special values, the four scale rules),
``cases_extremes.py`` (clamps, subnormals, largest inputs), ``cases_elements.py`` (rounding,
saturation, signs) and ``cases_dequantize.py``. Their bytes are worked out by hand from the
specification, with the arithmetic beside them. Nothing here runs the package. A bug starts as a
row.

``source`` is the public report a row comes from, or a number of ``specification.md``.
"""

from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
import torch
from oracle import FLOATS, FORMATS, MODES, Array, encode_float, pack_nibbles
from under_test import on_device

BLOCK_SIZE = 32
ALL_MODES = " ".join(MODES)
ALL_DTYPES = " ".join(FLOATS)
NOT_CEIL = "floor even rceil"  # many a power-of-two boundary concerns CEIL alone
NOT_FLOOR = "ceil even rceil"  # the modes that raise the exponent of a significand near 2

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# The formats that the ScalarType overload knows, specification.md, 2.
SCALAR_TYPES = {
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp4_e2m1": torch.float4_e2m1fn_x2,
    "int8": torch.int8,
}
# Payload dtype of the string overload: raw bytes where PyTorch has no complete dtype.
PAYLOAD_DTYPES = {
    name: SCALAR_TYPES.get(name, torch.uint8) if fmt.bits == 8 else torch.uint8
    for name, fmt in FORMATS.items()
}


# --- tensors and their bits: always through integer views, since e8m0 and float4 lack most ops ----


def to_tensor(bits: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``dtype`` with these bits on the device; it shares no memory with ``bits``."""
    return on_device(torch.from_numpy(np.array(bits, order="C")).view(dtype))


def to_bits(tensor: torch.Tensor) -> Array:
    """The bits of a tensor as unsigned integers."""
    unsigned = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[tensor.element_size()]
    return tensor.view(unsigned).cpu().numpy()


def to_payload(codes: Array, fmt: str, axis: int = -1) -> Array:
    """Codes as bytes of the op's output: two per byte for FP4."""
    return pack_nibbles(codes, axis) if FORMATS[fmt].bits <= 4 else codes


# --- rows --------------------------------------------------------------------------------------


def _bits(values: tuple[float | int, ...], dtype: str) -> Array:
    """An int is a bit pattern of ``dtype`` already; a float is a value it holds exactly."""
    storage = FLOATS[dtype].storage
    return np.array(
        [v if isinstance(v, int) else int(encode_float(np.float64(v), dtype)) for v in values],
        storage,
    )


def _repeated(items: Array) -> Array:
    """The row's items again and again until the block is full; that changes no maximum."""
    return np.fromiter(islice(cycle(items), BLOCK_SIZE), items.dtype)


class QuantizeCase(NamedTuple):
    """One block and its bytes; ``modes`` and ``dtypes`` name all that give the same bytes."""

    name: str
    source: str
    fmt: str
    modes: str
    dtypes: str
    values: tuple[float | int, ...]
    scale: int
    codes: tuple[int, ...]

    def applies(self, fmt: str, mode: str, dtype: str) -> bool:
        """Whether the row says something about this combination."""
        return fmt == self.fmt and mode in self.modes.split() and dtype in self.dtypes.split()

    def block(self, dtype: str) -> Array:
        """Bits of the whole block in ``dtype``."""
        return _repeated(_bits(self.values, dtype))

    def block_codes(self) -> Array:
        """Expected codes of the whole block."""
        return _repeated(np.array(self.codes, np.uint8))


class DequantizeCase(NamedTuple):
    """Codes under one scale byte, and the bits of the result in ``dtype``."""

    name: str
    source: str
    fmt: str
    dtype: str
    scale: int
    codes: tuple[int, ...]
    values: tuple[float | int, ...]  # int: bits of ``dtype``, float: a value it holds exactly

    def block_codes(self) -> Array:
        """Codes of the whole block."""
        return _repeated(np.array(self.codes, np.uint8))

    def block(self) -> Array:
        """Expected bits of the whole block."""
        return _repeated(_bits(self.values, self.dtype))
