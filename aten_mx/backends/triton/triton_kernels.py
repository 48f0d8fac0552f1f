"""The Triton kernels: fused quantization and dequantization.

One program handles a tile of ``ROWS`` by ``COLUMNS`` elements, columns along the blocked dimension,
reads it in memory order and writes it with the blocked dimension innermost.

This file and ``elements.py`` import only Triton: they are part of the patch to PyTorch core as they
are.
"""

import triton
import triton.language as tl

from .elements import MAGNITUDE, decode, encode, float32_bits, round_to, scale_byte, scaled


@triton.jit
def _tile(row_tiles, column_tiles, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ORDER: tl.constexpr):
    """This program's tile: its first row and column, and what is left of the program number, which
    counts the other dimensions."""
    pid = tl.program_id(0)
    row_tile, outer = 0, 0
    if ORDER == "flat":  # one row and nothing else: no division
        column_tile = pid
    elif ORDER == "rows":
        row_tile = pid % row_tiles
        column_tile = pid // row_tiles % column_tiles
        outer = pid // row_tiles // column_tiles
    else:
        row_tile = pid // column_tiles % row_tiles
        column_tile = pid % column_tiles
        outer = pid // column_tiles // row_tiles
    first_row = tl.cast(row_tile, tl.int64) * ROWS
    return first_row, column_tile.to(tl.int64) * COLUMNS, tl.cast(outer, tl.int64)


@triton.jit
def _load_columns(pointers, stride, mask, COLUMNS: tl.constexpr):
    """A tile, (ROWS, COLUMNS), whose rows' elements are ``stride`` apart.

    One load per column, joined. So each thread holds whole rows, whatever the strides, and no
    reduction or store needs other threads.
    """
    columns = ()
    for _ in tl.static_range(COLUMNS):
        columns = columns + (tl.load(pointers, mask=mask, other=0),)
        pointers += stride
    for _ in tl.static_range(7):  # up to 2^7 columns
        if len(columns) > 1:
            joined = ()
            for i in tl.static_range(len(columns) // 2):
                joined = joined + (tl.join(columns[i], columns[i + len(columns) // 2]),)
            columns = joined
    return tl.reshape(columns[0], (pointers.shape[0], COLUMNS))


@triton.jit
def _outer_offset(outer, sizes, strides):
    """Offset of the index ``outer``, counted row-major over dimensions of these sizes."""
    offset = tl.full((), 0, tl.int64)
    for i in tl.static_range(len(sizes) - 1, -1, -1):
        offset += outer % sizes[i] * strides[i]
        outer = outer // sizes[i]
    return offset


@triton.jit
def _swizzled(row, block, blocks):
    """Offsets of scale bytes in tiles of 128 rows by 4 columns."""
    tile = (row // 128)[:, None] * tl.cdiv(blocks, 4) + (block // 4)[None, :]
    in_tile = (row % 32 * 16 + row % 128 // 32 * 4)[:, None] + (block % 4)[None, :]
    return tile * 512 + in_tile


@triton.jit
def quantize_kernel(
    x_ptr,
    output_ptr,
    scale_ptr,
    rows,
    row_stride,
    row_unit,
    columns,
    column_stride,
    outer_sizes,
    outer_strides,
    outer_units,
    row_tiles,
    column_tiles,
    padded_rows,
    padded_columns,
    MANTISSA: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    BIAS: tl.constexpr,
    EMAX: tl.constexpr,
    MAX_CODE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SIGN_SHIFT: tl.constexpr,
    CODES_PER_BYTE: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CONVERT: tl.constexpr,
    FLUSHES: tl.constexpr,
    SWIZZLED: tl.constexpr,
    STRIDED: tl.constexpr,
    ORDER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Quantize a tile of ``x``.

    ``x`` has ``rows`` (``row_stride`` apart) times ``columns`` (the blocked dimension,
    ``column_stride`` apart), times the other dimensions, of ``outer_sizes`` and
    ``outer_strides``. The outputs are rows of ``columns`` codes; neighbouring rows of ``x`` are
    ``row_unit`` and ``outer_units`` of them apart. The tiles cover the padded sizes, which differ
    where the scale is swizzled.
    """
    BLOCKS: tl.constexpr = COLUMNS // BLOCK_SIZE
    first_row, first_column, outer = _tile(row_tiles, column_tiles, ROWS, COLUMNS, ORDER)
    row = first_row + tl.arange(0, ROWS)
    column = first_column + tl.arange(0, COLUMNS)
    x_ptr += _outer_offset(outer, outer_sizes, outer_strides)
    pointers = x_ptr + row * row_stride
    if STRIDED:
        mask = row < tl.where(first_column < columns, rows, 0)
        x = _load_columns(pointers + first_column * column_stride, column_stride, mask, COLUMNS)
    else:
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        x = tl.load(pointers[:, None] + column[None, :], mask=mask, other=0)

    bits = tl.reshape(float32_bits(x), (ROWS, BLOCKS, BLOCK_SIZE))
    # Integer order of sign-cleared bits is numeric order, and NaN sorts highest.
    byte = scale_byte(tl.max(bits & MAGNITUDE, 2), MODE, MANTISSA, MAX_CODE, EMAX)
    if CONVERT == "":
        codes = encode(
            bits,
            byte[:, :, None],
            MANTISSA,
            EXPONENT_BITS,
            BIAS,
            MAX_CODE,
            NAN_CODE,
            SIGN_SHIFT,
            FLUSHES,
        )
        if CODES_PER_BYTE == 2:
            even, odd = tl.split(tl.reshape(codes, (ROWS, COLUMNS // 2, 2)))
            codes = even | (odd << 4)
        payload = tl.reshape(codes, (ROWS, COLUMNS // CODES_PER_BYTE)).to(tl.uint8)
    else:
        values = tl.reshape(scaled(bits, byte[:, :, None], NAN_CODE), (ROWS, COLUMNS))
        if CODES_PER_BYTE == 2:
            even, odd = tl.split(tl.reshape(values, (ROWS, COLUMNS // 2, 2)))
            payload = tl.inline_asm_elementwise(
                CONVERT, "=r,r,r,r,r,r,r,r,r", [even, odd], dtype=tl.uint8, is_pure=True, pack=4
            )
        else:
            payload = tl.inline_asm_elementwise(
                CONVERT, "=r,r,r,r,r", [values], dtype=tl.uint8, is_pure=True, pack=4
            )

    outer_row = _outer_offset(outer, outer_sizes, outer_units)
    out_row = outer_row + row * row_unit
    BYTES: tl.constexpr = COLUMNS // CODES_PER_BYTE
    place = first_column // CODES_PER_BYTE + tl.arange(0, BYTES)
    size = columns // CODES_PER_BYTE
    mask = (row < rows)[:, None] & (place < size)[None, :]
    tl.store(output_ptr + out_row[:, None] * size + place[None, :], payload, mask=mask)

    block = first_column // BLOCK_SIZE + tl.arange(0, BLOCKS)
    blocks = columns // BLOCK_SIZE
    if SWIZZLED:
        # A matrix of tiles for each index of the other dimensions, padding included.
        first = outer_row // rows * padded_rows * (padded_columns // BLOCK_SIZE)
        scale_offsets = first + _swizzled(row, block, blocks)
        mask = (row < padded_rows)[:, None] & (block < padded_columns // BLOCK_SIZE)[None, :]
    else:
        scale_offsets = out_row[:, None] * blocks + block[None, :]
        mask = (row < rows)[:, None] & (block < blocks)[None, :]
    tl.store(scale_ptr + scale_offsets, byte.to(tl.uint8), mask=mask)


@triton.jit
def dequantize_kernel(
    payload_ptr,
    scale_ptr,
    output_ptr,
    rows,
    payload_row_stride,
    scale_row_stride,
    row_unit,
    columns,
    payload_column_stride,
    scale_column_stride,
    outer_sizes,
    outer_payload_strides,
    outer_scale_strides,
    outer_units,
    row_tiles,
    column_tiles,
    padded_rows,
    padded_columns,
    MANTISSA: tl.constexpr,
    EXPONENT_BITS: tl.constexpr,
    BIAS: tl.constexpr,
    MAX_CODE: tl.constexpr,
    INF_CODE: tl.constexpr,
    NAN_CODE: tl.constexpr,
    SIGN_SHIFT: tl.constexpr,
    CODES_PER_BYTE: tl.constexpr,
    FLUSHES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SWIZZLED: tl.constexpr,
    STRIDED: tl.constexpr,
    ORDER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Dequantize a tile: as ``quantize_kernel``, with the strides of payload and scale, the
    payload's in bytes; ``columns`` counts codes."""
    BLOCKS: tl.constexpr = COLUMNS // BLOCK_SIZE
    BYTES: tl.constexpr = COLUMNS // CODES_PER_BYTE
    first_row, first_column, outer = _tile(row_tiles, column_tiles, ROWS, COLUMNS, ORDER)
    row = first_row + tl.arange(0, ROWS)
    outer_row = _outer_offset(outer, outer_sizes, outer_units)

    payload_ptr += _outer_offset(outer, outer_sizes, outer_payload_strides)
    pointers = payload_ptr + row * payload_row_stride
    place = first_column // CODES_PER_BYTE
    if STRIDED:
        mask = row < tl.where(first_column < columns, rows, 0)
        pointers += place * payload_column_stride
        payload = _load_columns(pointers, payload_column_stride, mask, BYTES)
    else:
        place += tl.arange(0, BYTES)
        mask = (row < rows)[:, None] & (place < columns // CODES_PER_BYTE)[None, :]
        payload = tl.load(pointers[:, None] + place[None, :], mask=mask, other=0)
    codes = payload.to(tl.int32)
    if CODES_PER_BYTE == 2:
        codes = tl.join(codes & 0xF, codes >> 4)
    codes = tl.reshape(codes, (ROWS, BLOCKS, BLOCK_SIZE))

    block = first_column // BLOCK_SIZE + tl.arange(0, BLOCKS)
    blocks = columns // BLOCK_SIZE
    if SWIZZLED:
        first = outer_row // rows * padded_rows * (padded_columns // BLOCK_SIZE)
        scale_offsets = first + _swizzled(row, block, blocks)
    else:
        scale_ptr += _outer_offset(outer, outer_sizes, outer_scale_strides)
        scale_offsets = (row * scale_row_stride)[:, None] + (block * scale_column_stride)[None, :]
    mask = (row < rows)[:, None] & (block < blocks)[None, :]
    byte = tl.load(scale_ptr + scale_offsets, mask=mask, other=0).to(tl.int32)

    bits = decode(
        codes,
        byte[:, :, None],
        MANTISSA,
        EXPONENT_BITS,
        BIAS,
        MAX_CODE,
        INF_CODE,
        NAN_CODE,
        SIGN_SHIFT,
        FLUSHES,
    )
    values = tl.reshape(round_to(bits, output_ptr.dtype.element_ty), (ROWS, COLUMNS))
    column = first_column + tl.arange(0, COLUMNS)
    out_row = outer_row + row * row_unit
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(output_ptr + out_row[:, None] * columns + column[None, :], values, mask=mask)
