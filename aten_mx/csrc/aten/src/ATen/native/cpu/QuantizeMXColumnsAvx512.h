#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks of 32 along another dimension
// than the innermost one of memory.

#include <ATen/native/cpu/QuantizeMXAvx512.h>
#include <ATen/native/cpu/QuantizeMXTiling.h>

#include <algorithm>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// ---- blocks of 32 that lie across the rows of memory -----------------------
//
// Lanes are neighbouring blocks, so maxima and scales come without any shuffle.
// A tile is read row by row, in runs as long as memory and prefetchers want
// them; the codes are transposed at the end, as bytes.

// Lanes beyond the last column read as zero.
template <typename In>
inline Pair load_wide_masked(const typename In::raw* input, __mmask32 mask) {
  const auto high_mask = static_cast<__mmask16>(mask >> 16);
  if constexpr (std::is_same_v<In, Float32>) {
    return {
        _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), input),
        _mm512_maskz_loadu_epi32(high_mask, input + 16)};
  } else {
    const auto halves = _mm512_maskz_loadu_epi16(mask, input);
    const auto low = _mm512_castsi512_si256(halves);
    const auto high = _mm512_extracti64x4_epi64(halves, 1);
    return {
        _mm512_castps_si512(_mm512_cvtph_ps(low)),
        _mm512_castps_si512(_mm512_cvtph_ps(high))};
  }
}

template <typename In>
inline __m512i load_words_masked(
    const typename In::raw* input,
    __mmask32 mask) {
  if constexpr (std::is_same_v<In, BFloat16Bits>) {
    return _mm512_maskz_loadu_epi16(mask, input);
  } else {
    const auto pair = load_wide_masked<In>(input, mask);
    return to_odd(pair.low, pair.high);
  }
}

// A tile: as many blocks of 32 rows as make two cache lines of payload. Single
// lines, a power of two apart, took twice as long to write.
template <int F, typename In>
struct Columns {
  using Raw = typename In::raw;
  static constexpr bool wide = kWide(F, std::is_same_v<In, BFloat16Bits>);
  static constexpr int registers = wide ? 2 : 1; // of a strip of 32 columns
  // Tiles follow each other across a page and then down the blocks, or down at
  // once. Measured on (4096, 4096), two threads: float32 2.1 to 2.4 ms
  // across, 2.2 to 3.0 down; bfloat16 1.3 ms down, 1.4 to 2.3 across.
  static constexpr bool across = sizeof(Raw) == 4;
  static constexpr int columns = across ? 64 : 256;
  static constexpr int panel = across ? 4096 / (columns * sizeof(Raw)) : 1;
  static constexpr int strips = columns / 32;
  static constexpr int per_byte = kMXFormats[F].codes_per_byte();
  static constexpr int payload_rows = 128;
  static constexpr int block_bytes = 32 / per_byte;
  static constexpr int blocks = payload_rows / block_bytes;
  static constexpr int rows_at_once = 8; // streams of memory

  // A block of each column.
  struct Input {
    const Raw* first;
    int64_t stride;
    int count;

    const Raw* at(int row, int s) const {
      return first + row * stride + 32 * s;
    }
    __mmask32 lanes(int s) const {
      const int n = std::clamp(count - 32 * s, 0, 32);
      return static_cast<__mmask32>((uint64_t{1} << n) - 1);
    }
  };

  // 16-bit lanes of a block, with one cache line more than the strips take:
  // rows a power of two apart would compete for a few sets of the first cache.
  // Wide lanes would not fit there, so they are read again.
  __m512i kept[wide ? 1 : 32][strips + 1];
  __m512i divisors[strips][registers];
  __m512i codes[payload_rows][strips / 2];
  alignas(64) uint8_t scale[blocks][columns];
  uint32_t special[blocks][strips];

  void quantize_block(const Input& input, int block, MXScaleRule rule) {
    __m512i amax[strips][registers] = {};
    for (int first = 0; first < 32; first += rows_at_once) {
      for (int s = 0; 32 * s < input.count; ++s) {
        read(input, first, s, amax[s]);
      }
    }
    for (int s = 0; 32 * s < input.count; ++s) {
      const auto scales = divide_by(amax[s], rule, divisors[s]);
      _mm256_store_si256(
          reinterpret_cast<__m256i*>(scale[block] + 32 * s), scales.bytes);
      special[block][s] = scales.special & input.lanes(s);
    }
    for (int s = 0; 32 * s < input.count; s += 2) {
      for (int row = 0; row < block_bytes; ++row) {
        // Encoding leaves the memory idle, and no hardware prefetcher expects
        // what is read next: the same rows of the next tile, or the next block.
        for (int i = 0; i < per_byte; ++i) {
          const int this_row = row * per_byte + i;
          const auto* next = across ? input.at(this_row, s + strips)
                                    : input.at(this_row + 32, s);
          constexpr auto level = across ? Prefetch::nearest : Prefetch::near;
          prefetch<level>(next, 0);
          prefetch<level>(next, 32);
        }
        codes[block * block_bytes + row][s / 2] = payload(input, row, s);
      }
    }
  }

 private:
  void read(const Input& input, int first, int s, __m512i (&amax)[registers]) {
    const auto mask = input.lanes(s);
    auto low = amax[0];
    [[maybe_unused]] auto high = amax[registers - 1];
    for (int row = first; row < first + rows_at_once; ++row) {
      if constexpr (wide) {
        const auto pair = load_wide_masked<In>(input.at(row, s), mask);
        const auto magnitude = _mm512_set1_epi32(kMagnitude);
        low = _mm512_max_epu32(low, _mm512_and_si512(pair.low, magnitude));
        high = _mm512_max_epu32(high, _mm512_and_si512(pair.high, magnitude));
      } else {
        const auto x = load_words_masked<In>(input.at(row, s), mask);
        kept[row][s] = x;
        low =
            _mm512_max_epu16(low, _mm512_and_si512(x, words(kMagnitude >> 16)));
      }
    }
    amax[0] = low;
    if constexpr (wide) {
      amax[1] = high;
    }
  }

  static Scales divide_by(
      const __m512i (&amax)[registers],
      MXScaleRule rule,
      __m512i (&divisor)[registers]) {
    if constexpr (wide) {
      const auto scales = scales_of_wide<F>(amax, rule);
      store_divisors<F, true>(
          scales.bytes, reinterpret_cast<uint32_t*>(divisor));
      return scales;
    } else {
      const auto scales = scales_of_words<F>(amax[0], rule);
      const auto byte = _mm512_cvtepu8_epi16(scales.bytes);
      divisor[0] = _mm512_slli_epi16(
          _mm512_subs_epu16(byte, words(Encoding<F, 7>::base)), 7);
      return scales;
    }
  }

  __m512i code_words(const Input& input, int row, int s) const {
    if constexpr (wide) {
      const auto pair = load_wide_masked<In>(input.at(row, s), input.lanes(s));
      return low_halves(
          encode_wide<F>(pair.low, _mm512_castsi512_ps(divisors[s][0])),
          encode_wide<F>(pair.high, _mm512_castsi512_ps(divisors[s][1])));
    } else {
      return encode_words<F>(kept[row][s], divisors[s][0]);
    }
  }

  // A byte of each of the 64 columns from strip s.
  __m512i payload(const Input& input, int row, int s) const {
    if constexpr (per_byte == 2) {
      __m512i bytes[2];
      for (int i = 0; i < 2; ++i) {
        const auto even =
            _mm512_srli_epi16(code_words(input, 2 * row, s + i), 8);
        const auto odd =
            _mm512_srli_epi16(code_words(input, 2 * row + 1, s + i), 4);
        // even | (odd & 0xF0)
        bytes[i] = _mm512_ternarylogic_epi32(even, odd, words(0xF0), 0xF8);
      }
      return _mm512_packus_epi16(bytes[0], bytes[1]);
    } else {
      return pack_words<F, wide>(
          code_words(input, row, s), code_words(input, row, s + 1));
    }
  }
};

// Transposes 16 x 16 bytes in each 128-bit lane. Interleaving the upper with
// the lower half of the rows rotates the 8 bits of (row, column) by one.
inline void transpose_lanes(__m512i (&rows)[16]) {
  for (int round = 0; round < 4; ++round) {
    __m512i next[16];
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = _mm512_unpacklo_epi8(rows[i], rows[i + 8]);
      next[2 * i + 1] = _mm512_unpackhi_epi8(rows[i], rows[i + 8]);
    }
    std::copy(next, next + 16, rows);
  }
}

// 64 rows of 64 bytes, as payload_row packed them, become the lines of 64
// columns, "step" registers apart.
inline void transpose_bytes(
    const __m512i* rows,
    int64_t row_step,
    __m512i* lines,
    int64_t step) {
  __m512i quarters[4][16];
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 16; ++j) {
      quarters[i][j] = rows[(16 * i + j) * row_step];
    }
    transpose_lanes(quarters[i]);
  }
  for (int j = 0; j < 16; ++j) {
    const auto a = quarters[0][j];
    const auto b = quarters[1][j];
    const auto c = quarters[2][j];
    const auto d = quarters[3][j];
    const auto ab_low = _mm512_shuffle_i32x4(a, b, 0x44);
    const auto ab_high = _mm512_shuffle_i32x4(a, b, 0xEE);
    const auto cd_low = _mm512_shuffle_i32x4(c, d, 0x44);
    const auto cd_high = _mm512_shuffle_i32x4(c, d, 0xEE);
    // Packing put eight columns of each strip into every lane.
    const int column = j < 8 ? j : 32 + j - 8;
    lines[column * step] = _mm512_shuffle_i32x4(ab_low, cd_low, 0x88);
    lines[(column + 8) * step] = _mm512_shuffle_i32x4(ab_low, cd_low, 0xDD);
    lines[(column + 16) * step] = _mm512_shuffle_i32x4(ab_high, cd_high, 0x88);
    lines[(column + 24) * step] = _mm512_shuffle_i32x4(ab_high, cd_high, 0xDD);
  }
}

template <int F, typename In, bool stream>
void quantize_columns(
    const QuantizeJob& job,
    const Tile& tile,
    Columns<F, In>& columns) {
  constexpr int block_bytes = Columns<F, In>::block_bytes;
  constexpr int lines_per_column = Columns<F, In>::payload_rows / 64;
  const auto* base = static_cast<const typename In::raw*>(job.input) +
      tile.offset + tile.block_begin * 32 * job.stride;
  const auto count = static_cast<int>(tile.count);
  const auto blocks = static_cast<int>(tile.block_end - tile.block_begin);
  const auto block_of = [&](int column) {
    return (tile.first + column * tile.row_step) * job.blocks_per_row +
        tile.block_begin;
  };
  for (int c = 0; c < blocks; ++c) {
    const typename Columns<F, In>::Input input{
        base + c * 32 * job.stride, job.stride, count};
    columns.quantize_block(input, c, job.rule);
  }

  const int bytes = blocks * block_bytes;
  for (int first = 0; first < count; first += 64) {
    __m512i lines[64][lines_per_column];
    for (int i = 0; 64 * i < bytes; ++i) {
      constexpr int64_t row_step = Columns<F, In>::strips / 2;
      const auto* rows = &columns.codes[64 * i][first / 64];
      transpose_bytes(rows, row_step, &lines[0][i], lines_per_column);
    }
    for (int column = first; column < std::min(first + 64, count); ++column) {
      uint8_t* target = job.payload + block_of(column) * block_bytes;
      const auto& source = lines[column - first];
      if constexpr (stream) {
        for (int i = 0; 64 * i < bytes; ++i) {
          store512<true>(target + 64 * i, source[i]);
        }
      } else {
        std::memcpy(target, source, bytes);
      }
    }
  }

  for (int column = 0; column < count; ++column) {
    const int64_t block = block_of(column);
    for (int c = 0; c < blocks; ++c) {
      uint8_t byte = columns.scale[c][column];
      if (columns.special[c][column / 32] >> (column % 32) & 1) {
        byte = quantize_block<In>(
            base + c * 32 * job.stride + column,
            job.stride,
            32,
            kMXFormats[F],
            job.rule,
            job.payload + (block + c) * block_bytes);
      }
      job.put_scale(block + c, byte);
    }
  }
}

#endif // CPU_CAPABILITY_AVX512

} // namespace
} // namespace at::native
