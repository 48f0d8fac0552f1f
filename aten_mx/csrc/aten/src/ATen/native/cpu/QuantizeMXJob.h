#pragma once

// Included by QuantizeMXKernel.cpp alone: a call, and where its blocks lie.

#include <ATen/native/quantized/QuantizeMXCall.h>

#include <c10/util/irange.h>

#include <optional>

namespace at::native {
namespace {

// Elements a thread should have at least; at::internal::GRAIN_SIZE is for
// kernels that do one operation on each.
constexpr int64_t kGrainElements = 16384;

// The dimensions other than dim, in their order; a row is one index of them.
struct Rows {
  MXSizes<int64_t> sizes;
  MXSizes<int64_t> strides;
  int64_t count = 1;

  Rows(IntArrayRef all_sizes, IntArrayRef all_strides, int64_t dim) {
    for (const auto i : c10::irange(static_cast<int64_t>(all_sizes.size()))) {
      if (i != dim) {
        sizes.push_back(all_sizes[i]);
        strides.push_back(all_strides[i]);
        count *= all_sizes[i];
      }
    }
  }

  int64_t offset(int64_t row) const {
    int64_t result = 0;
    for (auto i = static_cast<int64_t>(sizes.size()) - 1; i >= 0; --i) {
      result += row % sizes[i] * strides[i];
      row /= sizes[i];
    }
    return result;
  }

  // Rows that follow each other at the distance of their length are one row.
  int64_t merge_into(int64_t length, int64_t stride) {
    while (!sizes.empty() &&
           (sizes.back() == 1 || strides.back() == length * stride)) {
      length *= sizes.back();
      count /= sizes.back();
      sizes.pop_back();
      strides.pop_back();
    }
    return length;
  }
};

// Walks over the blocks of consecutive rows.
struct BlockCursor {
  BlockCursor(
      const Rows& rows,
      int64_t blocks_per_row,
      int64_t block_stride,
      int64_t block)
      : rows_(rows),
        blocks_per_row_(blocks_per_row),
        block_stride_(block_stride),
        row_(block / blocks_per_row),
        column_(block % blocks_per_row),
        row_offset_(rows.offset(row_)) {}

  int64_t offset() const {
    return row_offset_ + column_ * block_stride_;
  }

  void next() {
    if (++column_ == blocks_per_row_) {
      column_ = 0;
      ++row_;
      if (row_ < rows_.count) {
        row_offset_ = rows_.offset(row_);
      }
    }
  }

 private:
  const Rows& rows_;
  int64_t blocks_per_row_;
  int64_t block_stride_;
  int64_t row_;
  int64_t column_;
  int64_t row_offset_;
};

// Position of the scale of block (row, column) in tiles of 128 rows by 4
// columns, for each matrix of the leading dimensions.
struct Swizzle {
  int64_t rows;
  int64_t column_tiles;
  int64_t matrix_bytes;

  Swizzle(int64_t rows, int64_t columns)
      : rows(rows),
        column_tiles((columns + kMXTileColumns - 1) / kMXTileColumns),
        matrix_bytes(
            (rows + kMXTileRows - 1) / kMXTileRows * column_tiles *
            kMXTileRows * kMXTileColumns) {}

  int64_t operator()(int64_t row, int64_t column) const {
    const int64_t matrix = row / rows;
    row %= rows;
    const int64_t tile =
        row / kMXTileRows * column_tiles + column / kMXTileColumns;
    row %= kMXTileRows;
    return matrix * matrix_bytes + tile * kMXTileRows * kMXTileColumns +
        row % 32 * 16 + row / 32 * 4 + column % kMXTileColumns;
  }
};

struct QuantizeJob {
  uint8_t* payload;
  uint8_t* scale;
  const void* input;
  MXScaleRule rule;
  int64_t blocks_per_row;
  int64_t block_size;
  int64_t stride; // between the elements of a block
  Rows rows;
  std::optional<Swizzle> swizzle;
  bool stream;

  void put_scale(int64_t block, uint8_t byte) const {
    if (swizzle) {
      scale[(*swizzle)(block / blocks_per_row, block % blocks_per_row)] = byte;
    } else {
      scale[block] = byte;
    }
  }
};

template <int F>
constexpr int64_t payload_bytes(int64_t elements) {
  return elements / kMXFormats[F].codes_per_byte();
}

} // namespace
} // namespace at::native
