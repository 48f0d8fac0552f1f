"""The tables in C++ are those in Python; no compiler needed."""

from __future__ import annotations

import re
from pathlib import Path

import aten_mx
from aten_mx import schema
from aten_mx.formats import E8M0_NAN, FORMATS
from aten_mx.layout import TILE_COLUMNS, TILE_ROWS, SwizzleType
from aten_mx.scaling import ScaleCalculationMode
from aten_mx.validation import SWIZZLE_BLOCK_SIZE

CSRC = Path(aten_mx.__file__).parent / "csrc"
SOURCES = {path.name: path.read_text() for path in sorted(CSRC.rglob("*.[hc]*")) if path.is_file()}
HEADER = SOURCES["QuantizeMX.h"]
SCALAR_TYPES = {  # C++'s names
    "torch.float8_e4m3fn": "Float8_e4m3fn",
    "torch.float8_e5m2": "Float8_e5m2",
    "torch.float4_e2m1fn_x2": "Float4_e2m1fn_x2",
    "torch.int8": "Char",
    "None": "Undefined",
}


def test_formats() -> None:
    rows = re.findall(r'MXFormat\{"(\w+)", +ScalarType::(\w+),(.*?)\}', HEADER, re.DOTALL)
    written = []
    for name, dtype, fields in rows:
        *numbers, twos_complement = fields.replace("'", "").split(",")
        flag = {"true": True, "false": False}[twos_complement.strip()]
        written.append((name, dtype, *(int(n, 0) for n in numbers), flag))
    assert written == [
        (
            *(fmt.name, SCALAR_TYPES[str(fmt.dtype)], fmt.bits, fmt.exponent_bits),
            *(fmt.mantissa_bits, fmt.max_code, fmt.inf_code or 0, fmt.nan_code),
            fmt.twos_complement,
        )
        for fmt in FORMATS.values()
    ]


def test_modes_and_layout() -> None:
    modes = re.findall(r'MXScaleMode\{\s*"(\w+)",\s*(\d+),', HEADER)
    assert modes == [(mode.name.lower(), str(mode.value)) for mode in ScaleCalculationMode]
    constants = dict(re.findall(r"constexpr \w+ kMX(\w+) = (\w+);", HEADER))
    assert {name: int(value, 0) for name, value in constants.items()} == {
        "ScaleNaN": E8M0_NAN,
        "SwizzleNone": SwizzleType.NO_SWIZZLE,
        "Swizzle32x4x4": SwizzleType.SWIZZLE_32_4_4,
        "SwizzleBlockSize": SWIZZLE_BLOCK_SIZE,
        "TileRows": TILE_ROWS,
        "TileColumns": TILE_COLUMNS,
        "TileGroups": 4,
    }


def test_a_format_and_a_mode_are_named_in_one_file() -> None:
    """All else follows from the row, so that a new one touches no other C++ file."""
    for name in (*FORMATS, *(mode.name.lower() for mode in ScaleCalculationMode)):
        assert [file for file, text in SOURCES.items() if f'"{name}"' in text] == ["QuantizeMX.h"]
    dtypes = "|".join(set(SCALAR_TYPES.values()) - {"Undefined", "Char"})
    assert [file for file, text in SOURCES.items() if re.search(dtypes, text)] == ["QuantizeMX.h"]


def test_the_schemas_are_those_of_python() -> None:
    texts = re.sub(r'"\s*"', "", SOURCES["overloads.h"])  # strings broken over lines
    assert sorted(re.findall(r'schema =\s*"(.*?)"', texts)) == sorted(schema.SCHEMAS)
