#pragma once

// Included by QuantizeMXKernel.cpp alone: AVX-512 loads of 32 numbers, their
// halves and maxima, and stores.

#include <ATen/native/cpu/QuantizeMXBlock.h>

#if defined(CPU_CAPABILITY_AVX512)
#include <immintrin.h>
#endif

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// Templates take a format as its position F in the table.

// The numbers that encoding needs. A float's bits are shifted so that the
// exponent field counts from the smallest power of two that can still round to
// a nonzero code, "base" below the block's scale; codes without a leading one
// are those whose field is below "first_normal".
template <int F, int fraction>
struct Encoding {
  static constexpr const MXFormat& format = kMXFormats[F];
  static constexpr int mantissa = format.mantissa_bits;
  static constexpr int base = format.bias() + mantissa;
  static constexpr int first_normal = mantissa + 1;
  // Room for the bits that denormalising shifts out. A lane of 16 or 32 bits
  // then holds the code in its top byte, with the bits to round off below.
  static constexpr int spare = mantissa + 1;
  static constexpr int max = ((format.emax() + base) << fraction) |
      (format.max_mantissa() << (fraction - mantissa));
};

inline __m512i words(int x) {
  return _mm512_set1_epi16(static_cast<short>(x));
}

// Lanes with the operators of signed numbers, for MXScaleRule.
struct Words {
  __m512i lanes;

  friend Words operator+(Words a, int b) {
    return {_mm512_add_epi16(a.lanes, words(b))};
  }
  friend Words operator&(Words a, int b) {
    return {_mm512_and_si512(a.lanes, words(b))};
  }
  friend Words operator>>(Words a, int bits) {
    return {_mm512_sra_epi16(a.lanes, _mm_cvtsi32_si128(bits))};
  }
};

struct Dwords {
  __m512i lanes;

  friend Dwords operator+(Dwords a, int b) {
    return {_mm512_add_epi32(a.lanes, _mm512_set1_epi32(b))};
  }
  friend Dwords operator&(Dwords a, int b) {
    return {_mm512_and_si512(a.lanes, _mm512_set1_epi32(b))};
  }
  friend Dwords operator>>(Dwords a, int bits) {
    return {_mm512_sra_epi32(a.lanes, _mm_cvtsi32_si128(bits))};
  }
};

inline __m512i word_iota() {
  const auto low = _mm256_setr_epi8(
      0,
      1,
      2,
      3,
      4,
      5,
      6,
      7,
      8,
      9,
      10,
      11,
      12,
      13,
      14,
      15,
      16,
      17,
      18,
      19,
      20,
      21,
      22,
      23,
      24,
      25,
      26,
      27,
      28,
      29,
      30,
      31);
  return _mm512_cvtepu8_epi16(low);
}

// High (or low) halves of the 32 lanes of a and b, in order.
inline __m512i high_halves(__m512i a, __m512i b) {
  const auto index =
      _mm512_add_epi16(_mm512_slli_epi16(word_iota(), 1), words(1));
  return _mm512_permutex2var_epi16(a, index, b);
}

inline __m512i low_halves(__m512i a, __m512i b) {
  const auto index = _mm512_slli_epi16(word_iota(), 1);
  return _mm512_permutex2var_epi16(a, index, b);
}

inline __m512i to_odd(__m512i a, __m512i b) {
  const auto sticky = _mm512_min_epu16(low_halves(a, b), words(1));
  return _mm512_or_si512(high_halves(a, b), sticky);
}

// 32 inputs as two registers of float32 bits.
struct Pair {
  __m512i low;
  __m512i high;
};

template <typename In>
inline Pair load_wide(const typename In::raw* input) {
  if constexpr (std::is_same_v<In, Float32>) {
    return {_mm512_loadu_si512(input), _mm512_loadu_si512(input + 16)};
  } else if constexpr (std::is_same_v<In, Float16>) {
    const auto* halves = reinterpret_cast<const __m256i*>(input);
    const auto low = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
    const auto high = _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1));
    return {_mm512_castps_si512(low), _mm512_castps_si512(high)};
  } else {
    const auto* halves = reinterpret_cast<const __m256i*>(input);
    const auto low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves));
    const auto high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves + 1));
    return {_mm512_slli_epi32(low, 16), _mm512_slli_epi32(high, 16)};
  }
}

template <typename In>
inline __m512i load_words(const typename In::raw* input) {
  if constexpr (std::is_same_v<In, BFloat16Bits>) {
    return _mm512_loadu_si512(input);
  } else {
    const auto pair = load_wide<In>(input);
    return to_odd(pair.low, pair.high);
  }
}

// Maxima of 2^k registers as one: at each level two registers become one, whose
// lanes are maxima of one or the other. On its own each register would need k
// steps.
struct Max16 {
  static __m512i max(__m512i a, __m512i b) {
    return _mm512_max_epu16(a, b);
  }
};

struct Max32 {
  static __m512i max(__m512i a, __m512i b) {
    return _mm512_max_epu32(a, b);
  }
};

template <typename Max>
inline __m512i merge32(__m512i a, __m512i b) {
  return Max::max(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}

template <typename Max>
inline __m512i merge64(__m512i a, __m512i b) {
  return Max::max(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

template <typename Max>
inline __m512i merge_lanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const auto ab = Max::max(
      _mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
  const auto cd = Max::max(
      _mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xEE));
  return Max::max(
      _mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xDD));
}

inline __m512i merge16(__m512i a, __m512i b) {
  return _mm512_max_epu16(
      _mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
}

// load(i) gives the magnitudes of block i in 16-bit lanes.
template <typename Load>
inline __m512i maxima_of_8(int i, const Load& load) {
  const auto ab = merge16(load(i), load(i + 1));
  const auto cd = merge16(load(i + 2), load(i + 3));
  const auto abcd = merge32<Max16>(ab, cd);
  const auto ef = merge16(load(i + 4), load(i + 5));
  const auto gh = merge16(load(i + 6), load(i + 7));
  return merge64<Max16>(abcd, merge32<Max16>(ef, gh));
}

template <typename Load>
inline __m512i maxima_of_32(const Load& load) {
  __m512i parts[4];
  for (const auto i : c10::irange(4)) {
    parts[i] = maxima_of_8(8 * i, load);
  }
  return merge_lanes<Max16>(parts[0], parts[1], parts[2], parts[3]);
}

// load(i) gives the magnitudes of block i in 32-bit lanes, two merged into one.
template <typename Load>
inline __m512i wide_maxima_of_16(int first, const Load& load) {
  __m512i parts[4];
  for (const auto j : c10::irange(4)) {
    const int i = first + 4 * j;
    parts[j] = merge64<Max32>(
        merge32<Max32>(load(i), load(i + 1)),
        merge32<Max32>(load(i + 2), load(i + 3)));
  }
  return merge_lanes<Max32>(parts[0], parts[1], parts[2], parts[3]);
}

template <bool stream>
inline void store512(uint8_t* target, __m512i x) {
  if constexpr (stream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target), x);
  } else {
    _mm512_storeu_si512(target, x);
  }
}

#endif // CPU_CAPABILITY_AVX512

} // namespace
} // namespace at::native
