"""The constants in C++ are those in Python; no compiler needed."""

from __future__ import annotations

import re

from aten_mx.backends import build
from aten_mx.formats import E8M0_NAN, FORMATS
from aten_mx.layout import TILE_COLUMNS, TILE_ROWS, SwizzleType
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.validation import SWIZZLE_BLOCK_SIZE

HEADER = build._HEADERS[0].read_text()
KERNEL = build._KERNEL.read_text()
BLOCK_HEADER = build._KERNEL.with_name("QuantizeMXBlock.h").read_text()
SCALAR_TYPES = {  # C++'s names
    "torch.float8_e4m3fn": "Float8_e4m3fn",
    "torch.float8_e5m2": "Float8_e5m2",
    "torch.float4_e2m1fn_x2": "Float4_e2m1fn_x2",
    "torch.int8": "Char",
    "None": "Undefined",
}


def test_formats() -> None:
    rows = re.findall(r'\{"(\w+)", ScalarType::(\w+), (.*?)\}', re.sub(r" +", " ", HEADER))
    written = []
    for name, dtype, fields in rows:
        *numbers, twos_complement = fields.replace("'", "").split(", ")
        written.append((name, dtype, *(int(n, 0) for n in numbers), twos_complement == "true"))
    assert written == [
        (
            *(fmt.name, SCALAR_TYPES[str(fmt.dtype)], fmt.bits, fmt.exponent_bits),
            *(fmt.mantissa_bits, fmt.max_code, fmt.inf_code or 0, fmt.nan_code),
            fmt.twos_complement,
        )
        for fmt in FORMATS.values()
    ]


def test_the_kernel_instantiates_every_row() -> None:
    """Positions in the table, which the CPU kernel takes as constants."""
    names = [fmt.name.removeprefix(f"fp{fmt.bits}_").upper() for fmt in FORMATS.values()]
    positions = re.search(r"enum Format : int \{ (.*?) \};", BLOCK_HEADER)
    assert positions is not None
    assert positions[1].split(", ") == names
    assert re.findall(r"case (\w+):\n +return f\(std::integral_constant", KERNEL) == names


def test_modes_and_layout() -> None:
    modes = re.search(r"enum class MXScaleMode : int64_t \{ (.*?) \}", HEADER)
    assert modes is not None
    expected = [f"{mode.name.capitalize()} = {mode.value}" for mode in ScaleCalculationMode]
    assert modes[1].split(", ") == expected
    constants = dict(re.findall(r"constexpr \w+ kMX(\w+) = (\w+);", HEADER))
    assert {name: int(value, 0) for name, value in constants.items()} == {
        "ScaleNaN": E8M0_NAN,
        "SwizzleNone": SwizzleType.NO_SWIZZLE,
        "Swizzle32x4x4": SwizzleType.SWIZZLE_32_4_4,
        "SwizzleBlockSize": SWIZZLE_BLOCK_SIZE,
        "TileRows": TILE_ROWS,
        "TileColumns": TILE_COLUMNS,
    }
