#pragma once

// Included by QuantizeMXKernel.cpp alone: dequantization of contiguous blocks
// of 32.

#include <ATen/native/cpu/DequantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXLanesAvx512.h>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

// Values of 32 codes as bfloat16, which holds them all.
template <int F>
struct Lookup {
  static constexpr int bits = kMXFormats[F].bits;
  // One for each magnitude of eight bits, else for each code.
  static constexpr int entries =
      kMXFormats[F].codes_per_byte() == 2 ? 32 : (bits <= 6 ? 64 : 128);
  static constexpr std::array<uint16_t, entries> make() {
    std::array<uint16_t, entries> table{};
    for (int i = 0; i < entries; ++i) {
      // Above a code's bits: whatever lies there in the index.
      table[i] = static_cast<uint16_t>(kValues[F][i] >> 16);
    }
    return table;
  }
  alignas(64) static constexpr std::array<uint16_t, entries> table = make();

  static __m512i part(int i) {
    return _mm512_load_si512(table.data() + 32 * i);
  }

  static __m512i load(const uint8_t* payload) {
    if constexpr (kMXFormats[F].codes_per_byte() == 2) {
      const auto bytes = _mm512_cvtepu8_epi32(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(payload)));
      // The index takes the low five bits of each half.
      const auto index = _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
      return _mm512_permutexvar_epi16(index, part(0));
    } else {
      const auto index = _mm512_cvtepu8_epi16(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(payload)));
      const auto low = _mm512_permutex2var_epi16(part(0), index, part(1));
      if constexpr (entries == 64) {
        return low;
      } else {
        const auto high = _mm512_permutex2var_epi16(part(2), index, part(3));
        const auto is_high = _mm512_test_epi16_mask(index, words(0x40));
        const auto value = _mm512_mask_blend_epi16(is_high, low, high);
        if constexpr (bits < 8) {
          return value;
        }
        const auto is_number =
            _mm512_cmple_epu16_mask(value, words(kInf >> 16));
        const auto sign = _mm512_maskz_slli_epi16(is_number, index, 8);
        // value | (sign & 0x8000)
        return _mm512_ternarylogic_epi32(value, sign, words(0x8000), 0xF8);
      }
    }
  }
};

inline __m512 widen_low(__m512i x) {
  const auto index = _mm512_srli_epi16(word_iota(), 1);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, index, x));
}

inline __m512 widen_high(__m512i x) {
  const auto index =
      _mm512_add_epi16(_mm512_srli_epi16(word_iota(), 1), words(16));
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAA, index, x));
}

template <typename Out, bool stream>
inline void store_values(typename Out::raw* output, __m512 low, __m512 high) {
  auto* bytes = reinterpret_cast<uint8_t*>(output);
  if constexpr (std::is_same_v<Out, ToFloat32>) {
    store512<stream>(bytes, _mm512_castps_si512(low));
    store512<stream>(bytes + 64, _mm512_castps_si512(high));
  } else if constexpr (std::is_same_v<Out, ToBFloat16>) {
    // A code's value has at most eight significant bits: nothing is cut off.
    const auto x =
        high_halves(_mm512_castps_si512(low), _mm512_castps_si512(high));
    store512<stream>(bytes, x);
  } else {
    constexpr int rounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const auto x = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtps_ph(low, rounding)),
        _mm512_cvtps_ph(high, rounding),
        1);
    store512<stream>(bytes, x);
  }
}

template <int F, typename Out, bool stream>
void dequantize_block_32(
    const uint8_t* payload,
    int scale,
    typename Out::raw* output) {
  constexpr const MXFormat& format = kMXFormats[F];
  constexpr int lowest = format.bias() + format.mantissa_bits;
  if (scale < lowest || scale == kMXScaleNaN) {
    dequantize_block<Out>(payload, 1, 32, format, scale, output);
    return;
  }
  __m512 low;
  __m512 high;
  int field = scale;
  if constexpr (format.twos_complement && format.bits == 8) {
    const auto* bytes = reinterpret_cast<const __m128i*>(payload);
    low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
    high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    field -= format.mantissa_bits;
  } else {
    const auto values = Lookup<F>::load(payload);
    low = widen_low(values);
    high = widen_high(values);
  }
  const auto factor =
      _mm512_castsi512_ps(_mm512_set1_epi32(field << kFraction));
  store_values<Out, stream>(
      output, _mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
}

#endif // CPU_CAPABILITY_AVX512

} // namespace
} // namespace at::native
