#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks whose elements are not side by
// side, but lie beside those of other blocks. A lane is a block, so that loads
// are of neighbours; for any block size and instruction set.

#include <ATen/native/cpu/QuantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXJob.h>

namespace at::native {
namespace {

// The same block of a tile's rows.
template <int F, typename In>
struct TileBlock {
  using raw = typename In::raw;
  static constexpr const MXFormat& format = kMXFormats[F];
  static constexpr int per_byte = format.codes_per_byte();
  static constexpr int64_t max_bytes = 64; // of a block, kept before they turn

  const raw* input;
  int64_t stride; // between the elements of a block
  int64_t row_stride;
  int64_t count; // rows, kTileRows at most

  uint8_t scale[kTileRows];
  int32_t offset[kTileRows];
  int32_t lowest[kTileRows];
  uint8_t codes[max_bytes][kTileRows];

  void find_scales(int64_t block_size, MXScaleRule rule) {
    uint32_t amax[kTileRows] = {};
    with_constant<kTileRows>(count, [&](auto n) {
      with_constant<1>(row_stride, [&](auto step) {
        for (int64_t k = 0; k < block_size; ++k) {
          const raw* line = input + k * stride;
          for (int64_t i = 0; i < n; ++i) {
            amax[i] = std::max(amax[i], In::bits(line[i * step]) & kMagnitude);
          }
        }
      });
    });
    for (int64_t i = 0; i < count; ++i) {
      scale[i] = scale_byte(amax[i], rule, format);
      offset[i] = exponent_offset<F>(scale[i]);
      // A block of another row may need the steps for subnormals. Zero is
      // right here, and keeps the difference to a large offset within 32 bits.
      lowest[i] = subnormals_vanish<F>(scale[i]) ? 0 : kLowest<F>;
    }
  }

  template <bool subnormals>
  void encode_line(const raw* line, bool upper_half, uint8_t* out) const {
    uint8_t line_codes[kTileRows]; // a local array: no pointer can alias it
    with_constant<kTileRows>(count, [&](auto n) {
      with_constant<1>(row_stride, [&](auto step) {
        for (int64_t i = 0; i < n; ++i) {
          line_codes[i] = encode_bits<F, subnormals>(
              In::bits(line[i * step]), offset[i], lowest[i]);
        }
      });
      for (int64_t i = 0; i < n; ++i) {
        out[i] = upper_half
            ? static_cast<uint8_t>(out[i] | (line_codes[i] << 4))
            : line_codes[i];
      }
    });
  }

  // Bytes [begin, begin + bytes) of each block.
  template <bool subnormals>
  void encode_bytes(int64_t begin, int64_t bytes) {
    const raw* line = input + begin * per_byte * stride;
    for (int64_t k = 0; k < bytes * per_byte; ++k, line += stride) {
      encode_line<subnormals>(line, k % per_byte != 0, codes[k / per_byte]);
    }
  }

  void put_payload(int64_t block_size, uint8_t* payload, int64_t pitch) {
    const int64_t block_bytes = block_size / per_byte;
    const bool subnormals =
        !subnormals_vanish<F>(*std::min_element(scale, scale + count));
    for (int64_t begin = 0; begin < block_bytes; begin += max_bytes) {
      const int64_t bytes = std::min(max_bytes, block_bytes - begin);
      if (subnormals) {
        encode_bytes<true>(begin, bytes);
      } else {
        encode_bytes<false>(begin, bytes);
      }
      for (int64_t i = 0; i < count; ++i) {
        uint8_t* out = payload + i * pitch + begin;
        for (int64_t k = 0; k < bytes; ++k) {
          out[k] = codes[k][i];
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      if (scale[i] == kMXScaleNaN) {
        std::memset(payload + i * pitch, format.nan_code, block_bytes);
      }
    }
  }
};

template <int F, typename In>
void quantize_tile(const QuantizeJob& job, const Tile& tile) {
  const int64_t bytes = payload_bytes<F>(job.block_size);
  const auto* base =
      static_cast<const typename In::raw*>(job.input) + tile.offset;
  TileBlock<F, In> block;
  block.stride = job.stride;
  block.row_stride = tile.row_stride;
  block.count = tile.count;
  for (int64_t c = tile.block_begin; c < tile.block_end; ++c) {
    const int64_t first = tile.first * job.blocks_per_row + c;
    const int64_t step = tile.row_step * job.blocks_per_row;
    block.input = base + c * job.block_size * job.stride;
    block.find_scales(job.block_size, job.rule);
    block.put_payload(
        job.block_size, job.payload + first * bytes, step * bytes);
    for (const auto i : c10::irange(tile.count)) {
      job.put_scale(first + i * step, block.scale[i]);
    }
  }
}

} // namespace
} // namespace at::native
