#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks whose elements are not side by
// side, but lie beside those of other blocks. A lane is a block, so that loads
// are of neighbours; for any block size, format and instruction set.

#include <ATen/native/cpu/QuantizeMXGroup.h>
#include <ATen/native/cpu/QuantizeMXTiling.h>
#include <ATen/native/cpu/QuantizeMXTranspose.h>

namespace at::native {
namespace {

// A tile: blocks of kTileRows rows, made line by line; a line has an element of
// each row. Its codes are kept until whole cache lines of payload can be
// written: rows are often a power of two apart, and then compete for few sets
// of the first cache.
template <typename In, Payload kind>
struct TileWork {
  using raw = typename In::raw;
  static constexpr int rows = kTileRows;
  static constexpr int per_byte = kind == Payload::nibbles ? 2 : 1;
  static constexpr int registers = rows / Lanes::size;
  static constexpr int max_bytes = kTileBytes;
  static constexpr int max_kept = 32;

  const QuantizeJob& job;
  const MXFormat& format;
  const Tile& tile;
  const MXEncoding e;
  const int count;
  const raw* input = nullptr; // of the block
  uint8_t* output = nullptr; // of the first row
  int64_t pitch = 0; // of rows of the payload
  int filled = 0; // bytes of a row in "codes"

  uint8_t scale[rows];
  alignas(64) int offset[rows];
  alignas(64) int kept[max_kept][rows]; // float32 bits of the first lines
  alignas(64) uint8_t codes[max_bytes][rows];

  TileWork(const QuantizeJob& job, const MXFormat& format, const Tile& tile)
      : job(job),
        format(format),
        tile(tile),
        e(format),
        count(static_cast<int>(tile.count)) {}

  // Float32 bits of element k of each row, with zeros for rows that are not
  // there.
  void read_line(int64_t k, Lanes (&x)[registers]) const {
    const raw* line = input + k * job.stride;
    raw copy[rows];
    if (tile.row_stride != 1 || count != rows) {
      for (int i = 0; i < rows; ++i) {
        copy[i] = i < count ? line[i * tile.row_stride] : 0;
      }
      line = copy;
    }
    for (int i = 0; i < registers; ++i) {
      x[i] = load_bits<In>(line + i * Lanes::size);
    }
  }

  uint64_t find_scales() {
    Lanes amax[registers];
    std::fill(amax, amax + registers, Lanes::all(0));
    for (int64_t k = 0; k < job.block_size; ++k) {
      Lanes x[registers];
      read_line(k, x);
      for (int i = 0; i < registers; ++i) {
        amax[i] = max(amax[i], x[i] & kMagnitude);
        if (k < max_kept) {
          x[i].store(kept[k] + i * Lanes::size);
        }
      }
    }
    alignas(64) int magnitudes[rows];
    for (int i = 0; i < registers; ++i) {
      amax[i].store(magnitudes + i * Lanes::size);
    }
    const auto special =
        scales_of(magnitudes, rows, format, e, job.rule, scale, offset);
    return count == rows ? special : special & ((uint64_t{1} << count) - 1);
  }

  void encode_line(int64_t k, Lanes (&x)[registers]) const {
    if (k < max_kept) {
      for (int i = 0; i < registers; ++i) {
        x[i] = Lanes::load(kept[k] + i * Lanes::size);
      }
    } else {
      read_line(k, x);
    }
    constexpr bool is_signed = kind == Payload::twos_complement;
    for (int i = 0; i < registers; ++i) {
      const auto w =
          (x[i] & kMagnitude) - Lanes::load(offset + i * Lanes::size);
      x[i] = with_sign<is_signed>(encode(w, e), x[i], e);
    }
  }

  // Encoding leaves the memory idle, and no hardware prefetcher expects what is
  // read next: the same lines of the next tile.
  void prefetch_next(int64_t k) const {
    const auto address = reinterpret_cast<uintptr_t>(input) +
        (k * job.stride + rows) * sizeof(raw);
    for (size_t i = 0; i < rows * sizeof(raw); i += 64) {
      prefetch_line(address + i);
    }
  }

  // A byte of each row.
  void encode_byte(int64_t byte, uint8_t* out) const {
    for (int i = 0; i < per_byte; ++i) {
      prefetch_next(byte * per_byte + i);
    }
    Lanes x[registers];
    encode_line(byte * per_byte, x);
    if constexpr (per_byte == 2) {
      Lanes odd[registers];
      encode_line(byte * 2 + 1, odd);
      for (int i = 0; i < registers; ++i) {
        x[i] = x[i] | (odd[i] << 4);
      }
    }
    for (int first = 0; first < registers; first += 32 / Lanes::size) {
      Lanes run[32 / Lanes::size];
      std::copy_n(x + first, 32 / Lanes::size, run);
      store_bytes<Float32>(run, out + first * Lanes::size); // in their order
    }
  }

  void put_codes() {
    for (int row = 0; row < count; row += 16) {
      for (int k = 0; k < filled; k += 16) {
        uint8_t* out = output + row * pitch + k;
        const int height = std::min(16, count - row);
        const int width = std::min(16, filled - k);
        if (height == 16 && width == 16) {
          transpose_16<Bytes>(&codes[k][row], rows, out, pitch);
        } else {
          uint8_t square[16][16];
          transpose_16<Bytes>(&codes[k][row], rows, square[0], 16);
          for (int i = 0; i < height; ++i) {
            std::memcpy(out + i * pitch, square[i], width);
          }
        }
      }
    }
    output += filled;
    filled = 0;
  }

  // What the vector code left out, after the payload has been written.
  void mend_blocks(
      int64_t block,
      uint64_t special,
      uint8_t* payload,
      const raw* elements) {
    for (; special != 0; special &= special - 1) {
      const int i = std::countr_zero(special);
      const uint8_t byte = quantize_block<In>(
          elements + i * tile.row_stride,
          job.stride,
          job.block_size,
          format,
          job.rule,
          payload + i * pitch);
      job.put_scale(block + i * tile.row_step * job.blocks_per_row, byte);
    }
  }

  void run() {
    const int64_t bytes = job.block_size / per_byte;
    const int64_t first = tile.first * job.blocks_per_row;
    const int64_t step = tile.row_step * job.blocks_per_row;
    const auto* base = static_cast<const raw*>(job.input) + tile.offset;
    const auto blocks = tile.block_end - tile.block_begin;
    pitch = step * bytes;
    output = job.payload + (first + tile.block_begin) * bytes;
    uint64_t special[kTileBytes];
    for (int64_t c = 0; c < blocks; ++c) {
      const int64_t block = first + tile.block_begin + c;
      input = base + (tile.block_begin + c) * job.block_size * job.stride;
      special[c] = find_scales();
      for (int i = 0; i < count; ++i) {
        job.put_scale(block + i * step, scale[i]);
      }
      for (int64_t byte = 0; byte < bytes; ++byte) {
        encode_byte(byte, codes[filled]);
        if (++filled == max_bytes) {
          put_codes();
        }
      }
    }
    put_codes();
    for (int64_t c = 0; c < blocks; ++c) {
      const int64_t block = first + tile.block_begin + c;
      mend_blocks(
          block,
          special[c],
          job.payload + block * bytes,
          base + (tile.block_begin + c) * job.block_size * job.stride);
    }
  }
};

template <typename In, Payload kind>
void quantize_tile(
    const QuantizeJob& job,
    const MXFormat& format,
    const Tile& tile) {
  TileWork<In, kind>(job, format, tile).run();
}

} // namespace
} // namespace at::native
