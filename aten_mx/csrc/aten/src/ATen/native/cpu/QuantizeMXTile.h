#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks whose elements are not side by
// side, but lie beside those of other blocks. A lane is a block, so that loads
// are of neighbours; for any block size, format and instruction set.

#include <ATen/native/cpu/QuantizeMXGroup.h>
#include <ATen/native/cpu/QuantizeMXTiling.h>
#include <ATen/native/cpu/QuantizeMXTranspose.h>

namespace at::native {
namespace {

// The same block of a tile's rows.
template <typename In, Payload kind>
struct TileBlock {
  using raw = typename In::raw;
  static constexpr int rows = kTileRows;
  static constexpr int per_byte = kind == Payload::nibbles ? 2 : 1;
  static constexpr int max_bytes = 64; // of a block, kept before they turn

  const MXFormat& format;
  MXScaleRule rule;
  MXEncoding e;
  int64_t stride; // between the elements of a block
  int64_t row_stride;
  int64_t block_size;
  int count; // rows, kTileRows at most
  const raw* input;

  uint8_t scale[rows];
  alignas(64) int offset[rows];
  alignas(64) uint8_t codes[max_bytes][rows];

  // Element k of each row, with zeros for rows that are not there.
  const raw* line(int64_t k, raw (&copy)[rows]) const {
    const raw* first = input + k * stride;
    if (row_stride == 1 && count == rows) {
      return first;
    }
    for (int i = 0; i < count; ++i) {
      copy[i] = first[i * row_stride];
    }
    return copy;
  }

  uint64_t find_scales() {
    alignas(64) int amax[rows] = {};
    raw copy[rows] = {};
    for (int64_t k = 0; k < block_size; ++k) {
      const raw* elements = line(k, copy);
      for (int i = 0; i < rows; i += Lanes::size) {
        const auto magnitude = load_bits<In>(elements + i) & kMagnitude;
        max(Lanes::load(amax + i), magnitude).store(amax + i);
      }
    }
    const auto special = scales_of(amax, rows, format, e, rule, scale, offset);
    return count == rows ? special : special & ((uint64_t{1} << count) - 1);
  }

  // A byte of each row.
  void encode_line(int64_t byte, uint8_t* out) const {
    constexpr bool is_signed = kind == Payload::twos_complement;
    raw copies[per_byte][rows] = {};
    const raw* elements[per_byte];
    for (int k = 0; k < per_byte; ++k) {
      elements[k] = line(byte * per_byte + k, copies[k]);
    }
    constexpr int registers = 32 / Lanes::size;
    for (int first = 0; first < rows; first += 32) {
      Lanes x[registers];
      for (int i = 0; i < registers; ++i) {
        const int row = first + i * Lanes::size;
        const auto code = [&](int k) {
          const auto bits = load_bits<In>(elements[k] + row);
          const auto w = (bits & kMagnitude) - Lanes::load(offset + row);
          return with_sign<is_signed>(encode(w, e), bits, e);
        };
        x[i] = code(0);
        if constexpr (per_byte == 2) {
          x[i] = x[i] | (code(1) << 4);
        }
      }
      store_bytes<Float32>(x, out + first); // the order of load_bits
    }
  }

  void put_payload(uint8_t* payload, int64_t pitch) {
    const int64_t block_bytes = block_size / per_byte;
    for (int64_t begin = 0; begin < block_bytes; begin += max_bytes) {
      const auto bytes =
          static_cast<int>(std::min<int64_t>(max_bytes, block_bytes - begin));
      for (int k = 0; k < bytes; ++k) {
        encode_line(begin + k, codes[k]);
      }
      for (int row = 0; row < count; row += 16) {
        for (int k = 0; k < bytes; k += 16) {
          put_square(row, k, bytes, payload + row * pitch + begin + k, pitch);
        }
      }
    }
  }

  void put_square(int row, int k, int bytes, uint8_t* out, int64_t pitch) {
    const int height = std::min(16, count - row);
    const int width = std::min(16, bytes - k);
    if (height == 16 && width == 16) {
      transpose_16<Bytes>(&codes[k][row], rows, out, pitch);
      return;
    }
    uint8_t square[16][16];
    transpose_16<Bytes>(&codes[k][row], rows, square[0], 16);
    for (int i = 0; i < height; ++i) {
      std::memcpy(out + i * pitch, square[i], width);
    }
  }
};

template <typename In, Payload kind>
void quantize_tile(
    const QuantizeJob& job,
    const MXFormat& format,
    const Tile& tile) {
  const int64_t bytes = job.block_size / format.codes_per_byte();
  const auto* base =
      static_cast<const typename In::raw*>(job.input) + tile.offset;
  TileBlock<In, kind> block{
      format,
      job.rule,
      MXEncoding(format),
      job.stride,
      tile.row_stride,
      job.block_size,
      static_cast<int>(tile.count),
      nullptr,
      {},
      {},
      {}};
  for (int64_t c = tile.block_begin; c < tile.block_end; ++c) {
    const int64_t first = tile.first * job.blocks_per_row + c;
    const int64_t step = tile.row_step * job.blocks_per_row;
    block.input = base + c * job.block_size * job.stride;
    auto special = block.find_scales();
    block.put_payload(job.payload + first * bytes, step * bytes);
    for (; special != 0; special &= special - 1) {
      const int i = std::countr_zero(special);
      block.scale[i] = quantize_block<In>(
          block.input + i * tile.row_stride,
          job.stride,
          job.block_size,
          format,
          job.rule,
          job.payload + (first + i * step) * bytes);
    }
    for (const auto i : c10::irange(tile.count)) {
      job.put_scale(first + i * step, block.scale[i]);
    }
  }
}

} // namespace
} // namespace at::native
