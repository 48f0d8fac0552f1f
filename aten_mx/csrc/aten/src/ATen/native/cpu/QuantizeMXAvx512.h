#pragma once

// Included by QuantizeMXKernel.cpp alone: blocks of 32 that are contiguous.

#include <ATen/native/cpu/QuantizeMXLanesAvx512.h>

#include <bit>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// ---- blocks of 32 in AVX-512 -----------------------------------------------
//
// A block of 32 is one register of 16-bit lanes: a bfloat16, or the upper half
// of a float32 with the lower half ORed into its last bit ("round to odd"),
// which rounds as the float32 does to any format of at most five fraction bits.
// A format with more takes 32-bit lanes unless the input is bfloat16.

constexpr bool kWide(int F, bool is_bfloat16) {
  return kMXFormats[F].mantissa_bits > 5 && !is_bfloat16;
}

// Whether every scale mode gives such a half the exponent of the float32: in
// two binades, with the lower halves between which a threshold would be missed.
template <int F>
constexpr bool modes_hold_in_halves() {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr int lower_halves[] = {0, 1, 0xFFFF};
  for (const auto& mode : kMXScaleModes) {
    const MXScaleRule rule(mode, format);
    for (int upper = 127 << 7; upper < 129 << 7; ++upper) {
      for (const int lower : lower_halves) {
        const bool is_lost = kWide(F, false) && lower != 0; // not a bfloat16
        const int half = upper | (lower != 0 ? 1 : 0);
        const int bits = upper << 16 | lower;
        if (!is_lost &&
            rule.biased_exponent<7>(half, format) !=
                rule.biased_exponent<kFraction>(bits, format)) {
          return false;
        }
      }
    }
  }
  return true;
}

// Scales of 32 blocks at once. A block is special where the fast encoding does
// not hold: NaN or Inf in it, or a scale so low that subnormals count.
struct Scales {
  __m256i bytes;
  __mmask32 special;
};

template <int F>
inline Scales scales_of_words(__m512i amax, MXScaleRule rule) {
  using E = Encoding<F, 7>;
  static_assert(modes_hold_in_halves<F>());
  const auto finite = _mm512_min_epu16(amax, words((kInf >> 16) - 1));
  const auto exponent = rule.biased_exponent<7>(Words{finite}, E::format);
  const auto byte = _mm512_min_epi16(
      _mm512_max_epi16(exponent.lanes, _mm512_setzero_si512()),
      words(kE8M0Max));
  const auto not_finite = _mm512_cmpge_epu16_mask(amax, words(kInf >> 16));
  const auto low = _mm512_mask_cmple_epu16_mask(
      _mm512_test_epi16_mask(amax, amax), byte, words(E::base));
  return {_mm512_cvtepi16_epi8(byte), not_finite | low};
}

template <int F>
inline Scales scales_of_wide(const __m512i (&amax)[2], MXScaleRule rule) {
  using E = Encoding<F, kFraction>;
  __m128i bytes[2];
  uint32_t special = 0;
  for (const auto i : c10::irange(2)) {
    const auto finite = _mm512_min_epu32(amax[i], _mm512_set1_epi32(kInf - 1));
    const auto exponent =
        rule.biased_exponent<kFraction>(Dwords{finite}, E::format);
    const auto byte = _mm512_min_epi32(
        _mm512_max_epi32(exponent.lanes, _mm512_setzero_si512()),
        _mm512_set1_epi32(kE8M0Max));
    const auto not_finite =
        _mm512_cmpge_epu32_mask(amax[i], _mm512_set1_epi32(kInf));
    const auto low = _mm512_mask_cmple_epu32_mask(
        _mm512_test_epi32_mask(amax[i], amax[i]),
        byte,
        _mm512_set1_epi32(E::base));
    special |= static_cast<uint32_t>(not_finite | low) << (16 * i);
    bytes[i] = _mm512_cvtepi32_epi8(byte);
  }
  return {_mm256_set_m128i(bytes[1], bytes[0]), special};
}

// What a regular block's elements are divided by, one for each of 32 blocks:
// in 16-bit lanes the exponent to subtract, twice in 32 bits; in 32-bit lanes
// the factor that makes the smallest code 1.
template <int F, bool wide>
inline void store_divisors(__m256i scale_bytes, uint32_t* divisors) {
  const __m128i halves[2] = {
      _mm256_castsi256_si128(scale_bytes),
      _mm256_extracti128_si256(scale_bytes, 1)};
  for (const auto i : c10::irange(2)) {
    const auto scale = _mm512_cvtepu8_epi32(halves[i]);
    __m512i divisor;
    if constexpr (wide) {
      // Byte 254 and six fraction bits: the least field is 6, so a normal one.
      const auto field = _mm512_sub_epi32(
          _mm512_set1_epi32(2 * kE8M0Bias + kMXFormats[F].mantissa_bits),
          scale);
      divisor = _mm512_slli_epi32(field, kFraction);
    } else {
      const auto base = _mm512_set1_epi32(Encoding<F, 7>::base);
      const auto offset = _mm512_slli_epi32(
          _mm512_sub_epi32(_mm512_max_epi32(scale, base), base), 7);
      divisor = _mm512_or_si512(offset, _mm512_slli_epi32(offset, 16));
    }
    _mm512_storeu_si512(divisors + 16 * i, divisor);
  }
}

// Codes in 16-bit lanes: in the upper byte, or, in two's complement, as 16-bit
// numbers.
template <int F>
inline __m512i encode_words(__m512i x, __m512i offset) {
  using E = Encoding<F, 7>;
  const auto magnitude = _mm512_and_si512(x, words(0x7FFF));
  const auto w =
      _mm512_min_epu16(_mm512_subs_epu16(magnitude, offset), words(E::max));
  const auto missing =
      _mm512_subs_epu16(words(E::first_normal), _mm512_srli_epi16(w, 7));
  // (w & 0x7F) | 0x80
  const auto significand =
      _mm512_ternarylogic_epi32(w, words(0x7F), words(0x80), 0xEA);
  const auto denormal =
      _mm512_srlv_epi16(_mm512_slli_epi16(significand, E::spare), missing);
  const auto normal = _mm512_slli_epi16(
      _mm512_subs_epu16(w, words((E::first_normal - 1) << 7)), E::spare);
  const auto full = _mm512_max_epu16(normal, denormal);
  const auto odd = _mm512_and_si512(_mm512_srli_epi16(full, 8), words(1));
  const auto code = _mm512_add_epi16(_mm512_add_epi16(full, words(0x7F)), odd);
  if constexpr (E::format.twos_complement) {
    const auto sign = _mm512_srai_epi16(x, 15);
    const auto number = _mm512_srli_epi16(code, 8);
    return _mm512_sub_epi16(_mm512_xor_si512(number, sign), sign);
  } else {
    constexpr int sign_bit = E::format.sign_bit() << 8;
    const auto sign =
        sign_bit == 0x8000 ? x : _mm512_srli_epi16(x, 8 - E::format.bits);
    // sign_bit ? sign : code
    return _mm512_ternarylogic_epi32(words(sign_bit), sign, code, 0xCA);
  }
}

// Codes in 32-bit lanes: the hardware's conversion rounds ties to even. Beside
// six fraction bits a byte has one exponent bit, so that codes are integers.
template <int F>
inline __m512i encode_wide(__m512i x, __m512 factor) {
  constexpr const MXFormat& format = kMXFormats[F];
  static_assert(format.exponent_bits == 1);
  const auto product = _mm512_mul_ps(_mm512_castsi512_ps(x), factor);
  const auto number = _mm512_cvt_roundps_epi32(
      product, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if constexpr (format.twos_complement) {
    return number;
  } else {
    const auto code = _mm512_min_epi32(
        _mm512_abs_epi32(number), _mm512_set1_epi32(format.max_code));
    const auto sign = _mm512_srli_epi32(x, 32 - format.bits);
    // sign_bit ? sign : code
    return _mm512_ternarylogic_epi32(
        _mm512_set1_epi32(format.sign_bit()), sign, code, 0xCA);
  }
}

inline __m512i gather_dwords(__m512i x) {
  // Lane l, dword i to dword 4 i + l.
  const auto index =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(index, x);
}

inline __m512i gather_qwords(__m512i x) {
  const auto index = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  return _mm512_permutexvar_epi64(index, x);
}

// Bytes of the codes in two registers of 16-bit lanes.
template <int F, bool wide>
inline __m512i pack_words(__m512i a, __m512i b) {
  if constexpr (kMXFormats[F].twos_complement) {
    // Saturation leaves the most negative number, which is no code.
    return _mm512_max_epi8(
        _mm512_packs_epi16(a, b), _mm512_set1_epi8(-kMXFormats[F].max_code));
  } else if constexpr (wide) {
    return _mm512_packus_epi16(a, b);
  } else {
    return _mm512_packus_epi16(
        _mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
  }
}

// Encoding leaves the memory idle, and hardware prefetchers stop at the end of
// a page, which is as long as a group of float32 blocks. So the encoding of one
// group fetches a later one. Where the input isn't contiguous the guess is
// wrong, which is harmless.
constexpr int64_t kPrefetchGroups = 2;

enum class Prefetch {
  once,
  nearest,
  near
};

template <Prefetch level, typename Raw>
inline void prefetch(const Raw* source, int64_t elements_ahead) {
  // An integer, as the address may lie beyond the tensor.
  const auto address =
      reinterpret_cast<uintptr_t>(source) + elements_ahead * sizeof(Raw);
  // 32 elements are one line of 16-bit numbers, two of float32.
  for (size_t line = 0; line < 32 * sizeof(Raw); line += 64) {
    const auto* target = reinterpret_cast<const char*>(address + line);
    if constexpr (level == Prefetch::once) {
      _mm_prefetch(target, _MM_HINT_NTA);
    } else if constexpr (level == Prefetch::nearest) {
      _mm_prefetch(target, _MM_HINT_T0);
    } else {
      _mm_prefetch(target, _MM_HINT_T1);
    }
  }
}

// Quantizes 32 blocks of 32, block i at inputs[i], to consecutive payload.
template <int F, typename In, bool stream>
void quantize_group(
    const typename In::raw* const* inputs,
    MXScaleRule rule,
    uint8_t* payload,
    uint8_t* scale) {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr bool wide = kWide(F, std::is_same_v<In, BFloat16Bits>);
  alignas(64) uint16_t kept[wide ? 1 : kGroup][32];
  alignas(64) uint32_t divisors[kGroup];
  Scales scales;
  if constexpr (wide) {
    const auto mask = _mm512_set1_epi32(kMagnitude);
    const auto load = [&](int i) {
      const auto pair = load_wide<In>(inputs[i]);
      return _mm512_max_epu32(
          _mm512_and_si512(pair.low, mask), _mm512_and_si512(pair.high, mask));
    };
    const __m512i amax[2] = {
        wide_maxima_of_16(0, load), wide_maxima_of_16(16, load)};
    scales = scales_of_wide<F>(amax, rule);
  } else {
    const auto load = [&](int i) {
      const auto x = load_words<In>(inputs[i]);
      if constexpr (!std::is_same_v<In, BFloat16Bits>) {
        _mm512_store_si512(kept[i], x);
      }
      return _mm512_and_si512(x, words(0x7FFF));
    };
    scales = scales_of_words<F>(maxima_of_32(load), rule);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(scale), scales.bytes);
  store_divisors<F, wide>(scales.bytes, divisors);

  const auto codes = [&](int i) {
    prefetch<Prefetch::once>(inputs[i], kPrefetchGroups * kGroup * 32);
    if constexpr (wide) {
      const auto factor = _mm512_set1_ps(c10::bit_cast<float>(divisors[i]));
      const auto pair = load_wide<In>(inputs[i]);
      return _mm512_packs_epi32(
          encode_wide<F>(pair.low, factor), encode_wide<F>(pair.high, factor));
    } else {
      const auto offset = _mm512_set1_epi32(static_cast<int>(divisors[i]));
      const void* source = kept[i];
      if constexpr (std::is_same_v<In, BFloat16Bits>) {
        source = inputs[i];
      }
      return encode_words<F>(_mm512_loadu_si512(source), offset);
    }
  };
  if constexpr (format.codes_per_byte() == 2) {
    const auto nibbles = _mm512_set1_epi16(0x1001); // low + 16 * high
    for (int i = 0; i < kGroup; i += 4) {
      const auto ab = pack_words<F, wide>(codes(i), codes(i + 1));
      const auto cd = pack_words<F, wide>(codes(i + 2), codes(i + 3));
      const auto packed = _mm512_packus_epi16(
          _mm512_maddubs_epi16(ab, nibbles), _mm512_maddubs_epi16(cd, nibbles));
      store512<stream>(payload + i * 16, gather_dwords(packed));
    }
  } else {
    for (int i = 0; i < kGroup; i += 2) {
      const auto packed = pack_words<F, wide>(codes(i), codes(i + 1));
      if constexpr (wide) {
        store512<stream>(payload + i * 32, gather_dwords(packed));
      } else {
        store512<stream>(payload + i * 32, gather_qwords(packed));
      }
    }
  }
  for (auto special = static_cast<uint32_t>(scales.special); special != 0;
       special &= special - 1) {
    const int i = std::countr_zero(special);
    constexpr int bytes = 32 / format.codes_per_byte();
    scale[i] =
        quantize_block<In>(inputs[i], 1, 32, format, rule, payload + i * bytes);
  }
}

#endif // CPU_CAPABILITY_AVX512

} // namespace
} // namespace at::native
