#pragma once

// Included by QuantizeMXComposite.cpp alone: where blocks, pairs of codes and
// tiles of scales lie. Sizes may be symbolic.

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/QuantizeMX.h>
#include <ATen/native/quantized/QuantizeMXCall.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#else
#include <ATen/ops/constant_pad_nd.h>
#endif

#include <optional>

namespace at::native {

namespace {

using SymSizes = MXSizes<c10::SymInt>;

// clone and not contiguous(), which keeps the strides of sizes 0 and 1.
inline Tensor in_layout(const Tensor& moved, int64_t dim) {
  return moved.clone(MemoryFormat::Contiguous).movedim(-1, dim);
}

// Splits the last dimension into blocks.
inline Tensor in_blocks(const Tensor& moved, int64_t block_size) {
  const auto blocks = moved.sym_size(-1) / block_size;
  return moved.unflatten_symint(-1, SymSizes{blocks, block_size});
}

inline Tensor every_second(const Tensor& tensor, int64_t start) {
  return tensor.slice_symint(-1, start, std::nullopt, 2);
}

// Rows and columns in tiles: r / 128, c / 4, r % 32, r / 32 % 4, c % 4.
inline Tensor swizzle(const Tensor& scale) {
  const auto rows = scale.sym_size(-2), columns = scale.sym_size(-1);
  const auto row_tiles = mx_ceil_div(rows, kMXTileRows);
  const auto column_tiles = mx_ceil_div(columns, kMXTileColumns);
  const SymSizes padding{
      0,
      column_tiles * kMXTileColumns - columns,
      0,
      row_tiles * kMXTileRows - rows};
  auto sizes = scale.sym_sizes().vec();
  sizes[sizes.size() - 2] = row_tiles * kMXGroupRows;
  sizes[sizes.size() - 1] = column_tiles * (kMXTileGroups * kMXTileColumns);
  return at::constant_pad_nd_symint(scale, padding)
      .unflatten_symint(-1, SymSizes{column_tiles, kMXTileColumns})
      .unflatten_symint(-3, SymSizes{row_tiles, kMXTileGroups, kMXGroupRows})
      .movedim({-4, -3, -2}, {-2, -3, -4})
      .reshape_symint(sizes);
}

inline Tensor unswizzle(
    const Tensor& swizzled,
    const c10::SymInt& rows,
    const c10::SymInt& columns) {
  const auto row_tiles = swizzled.sym_size(-2) / kMXGroupRows;
  const auto column_tiles =
      swizzled.sym_size(-1) / (kMXTileGroups * kMXTileColumns);
  auto sizes = swizzled.sym_sizes().vec();
  sizes.resize(sizes.size() - 2);
  auto padded = sizes;
  sizes.insert(
      sizes.end(),
      {row_tiles, column_tiles, kMXGroupRows, kMXTileGroups, kMXTileColumns});
  padded.insert(
      padded.end(), {row_tiles * kMXTileRows, column_tiles * kMXTileColumns});
  return swizzled.reshape_symint(sizes)
      .movedim({-2, -3, -4}, {-4, -3, -2})
      .reshape_symint(padded)
      .slice_symint(-2, 0, rows)
      .slice_symint(-1, 0, columns);
}

} // namespace

} // namespace at::native
