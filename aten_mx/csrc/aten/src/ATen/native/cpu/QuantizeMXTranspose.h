#pragma once

#include <cstdint>
#include <utility>

namespace at::native {
namespace {

// Transposes 16 rows of 16 bytes, "pitch" apart, to rows "out_pitch" apart.
// Interleaving the upper with the lower half of the rows rotates the 8 bits of
// (row, column) by one. Bytes has load, store, and the two halves of the
// interleaved bytes of two registers.
template <typename Bytes>
inline void transpose_16(
    const uint8_t* in,
    int64_t pitch,
    uint8_t* out,
    int64_t out_pitch) {
  Bytes rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = Bytes::load(in + i * pitch);
  }
  for (int round = 0; round < 4; ++round) {
    Bytes next[16];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = interleave_low(rows[i], rows[i + 8]);
      next[2 * i + 1] = interleave_high(rows[i], rows[i + 8]);
    }
    std::copy(next, next + 16, rows);
  }
  for (int i = 0; i < 16; ++i) {
    rows[i].store(out + i * out_pitch);
  }
}

} // namespace
} // namespace at::native
