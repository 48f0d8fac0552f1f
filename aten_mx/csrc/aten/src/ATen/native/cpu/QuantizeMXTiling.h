#pragma once

// Included by QuantizeMXKernel.cpp alone: which rows and blocks are worked on
// together where a block's elements are not side by side.

#include <ATen/Parallel.h>
#include <ATen/native/cpu/QuantizeMXJob.h>

namespace at::native {
namespace {

// Rows of the output, and bytes of each, that are made together where the input
// is not contiguous along dim: there a cache line holds elements of several
// rows.
constexpr int64_t kTileRows = 64;
constexpr int64_t kTileBytes = 128;

// Where dim is not the innermost dimension of the input, the rows that lie side
// by side in memory are worked on together: rows first + i * row_step for i in
// [0, count), whose inputs are row_stride apart.
struct Tile {
  int64_t offset;
  int64_t row_stride;
  int64_t first;
  int64_t row_step;
  int64_t count;
  int64_t block_begin;
  int64_t block_end;
};

// How large tiles are.
struct Tiling {
  int64_t rows = kTileRows;
  int64_t bytes = kTileBytes; // of a row's payload
  int64_t panel = 1; // tiles side by side before those below
};

// Calls f, in each thread, with a range of tiles and what gives a tile.
template <typename Func>
void for_each_tile(
    const QuantizeJob& job,
    const MXFormat& format,
    int64_t inner,
    const Tiling& tiling,
    Func&& f) {
  int64_t row_step = 1;
  for (auto i = static_cast<size_t>(inner) + 1; i < job.rows.sizes.size();
       ++i) {
    row_step *= job.rows.sizes[i];
  }
  const int64_t inner_size = job.rows.sizes[inner];
  Rows outer = job.rows;
  outer.sizes.erase(outer.sizes.begin() + inner);
  outer.strides.erase(outer.strides.begin() + inner);
  outer.count /= inner_size;

  const int64_t tile_blocks = std::max<int64_t>(
      1, tiling.bytes * format.codes_per_byte() / job.block_size);
  const int64_t row_tiles = (inner_size + tiling.rows - 1) / tiling.rows;
  const int64_t block_tiles =
      (job.blocks_per_row + tile_blocks - 1) / tile_blocks;
  const int64_t tile_elements = tiling.rows * tile_blocks * job.block_size;
  at::parallel_for(
      0,
      outer.count * block_tiles * row_tiles,
      std::max<int64_t>(1, kGrainElements / tile_elements),
      [&](int64_t begin, int64_t end) {
        const auto tile_at = [&](int64_t index) {
          const int64_t outer_row = index / (row_tiles * block_tiles);
          const int64_t inner_tile = index % (row_tiles * block_tiles);
          const int64_t first_of_panel =
              inner_tile / (tiling.panel * block_tiles) * tiling.panel;
          const int64_t width =
              std::min(tiling.panel, row_tiles - first_of_panel);
          const int64_t in_panel = inner_tile - first_of_panel * block_tiles;
          const int64_t first_row =
              (first_of_panel + in_panel % width) * tiling.rows;
          const int64_t block_tile = in_panel / width;
          Tile tile;
          tile.row_stride = job.rows.strides[inner];
          tile.row_step = row_step;
          tile.count = std::min(tiling.rows, inner_size - first_row);
          tile.offset = outer.offset(outer_row) + first_row * tile.row_stride;
          tile.first =
              (outer_row / row_step * inner_size + first_row) * row_step +
              outer_row % row_step;
          tile.block_begin = block_tile * tile_blocks;
          tile.block_end =
              std::min(tile.block_begin + tile_blocks, job.blocks_per_row);
          return tile;
        };
        f(begin, end, tile_at);
      });
}

// The dimension along which neighbouring rows lie closest together.
int64_t innermost(const Rows& rows) {
  int64_t inner = 0;
  for (const auto i : c10::irange(static_cast<int64_t>(rows.sizes.size()))) {
    const bool candidate = rows.sizes[i] > 1 && rows.strides[i] > 0;
    if (rows.sizes[inner] == 1 ||
        (candidate && rows.strides[i] <= rows.strides[inner])) {
      inner = i;
    }
  }
  return inner;
}

} // namespace
} // namespace at::native
