#pragma once

// Lanes in AVX2; see QuantizeMXLanes.h.

#include <ATen/native/cpu/QuantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXBytesX86.h>

#include <immintrin.h>

#include <type_traits>

namespace at::native {
namespace {

struct Lanes {
  static constexpr int size = 8;
  __m256i r;

  static Lanes all(int x) {
    return {_mm256_set1_epi32(x)};
  }
  static Lanes load(const int* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  void store(int* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), r);
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    return {_mm256_add_epi32(a.r, b.r)};
  }
  friend Lanes operator+(Lanes a, int b) {
    return a + all(b);
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    return {_mm256_sub_epi32(a.r, b.r)};
  }
  friend Lanes operator&(Lanes a, int b) {
    return {_mm256_and_si256(a.r, all(b).r)};
  }
  friend Lanes operator|(Lanes a, Lanes b) {
    return {_mm256_or_si256(a.r, b.r)};
  }
  friend Lanes operator^(Lanes a, Lanes b) {
    return {_mm256_xor_si256(a.r, b.r)};
  }
  friend Lanes operator>>(Lanes a, int bits) {
    return {_mm256_sra_epi32(a.r, _mm_cvtsi32_si128(bits))};
  }
  friend Lanes operator<<(Lanes a, int bits) {
    return {_mm256_sll_epi32(a.r, _mm_cvtsi32_si128(bits))};
  }
  friend Lanes max(Lanes a, Lanes b) {
    return {_mm256_max_epi32(a.r, b.r)};
  }
  friend Lanes min(Lanes a, Lanes b) {
    return {_mm256_min_epi32(a.r, b.r)};
  }
  // All bits of a lane, or none.
  friend Lanes greater(Lanes a, Lanes b) {
    return {_mm256_cmpgt_epi32(a.r, b.r)};
  }
  friend Lanes select(Lanes mask, Lanes a, Lanes b) {
    return {_mm256_blendv_epi8(b.r, a.r, mask.r)};
  }
  friend Lanes min_floats(Lanes a, Lanes b) {
    return {_mm256_castps_si256(
        _mm256_min_ps(_mm256_castsi256_ps(a.r), _mm256_castsi256_ps(b.r)))};
  }
  friend Lanes multiply_floats(Lanes a, Lanes b) {
    return {_mm256_castps_si256(
        _mm256_mul_ps(_mm256_castsi256_ps(a.r), _mm256_castsi256_ps(b.r)))};
  }
  friend Lanes to_float(Lanes a) {
    return {_mm256_castps_si256(_mm256_cvtepi32_ps(a.r))};
  }
  friend Lanes add_floats(Lanes a, Lanes b) {
    return {_mm256_castps_si256(
        _mm256_add_ps(_mm256_castsi256_ps(a.r), _mm256_castsi256_ps(b.r)))};
  }
  int largest() const {
    auto x = _mm_max_epi32(
        _mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4E));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xB1));
    return _mm_cvtsi128_si32(x);
  }
};

template <bool is_signed, int n>
inline void load_bytes(const uint8_t* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; ++i) {
    const auto bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    x[i].r =
        is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes);
    p += 8;
  }
}

template <typename In>
inline Lanes load_bits(const typename In::raw* p) {
  if constexpr (std::is_same_v<In, Float32>) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  } else {
    const auto halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (std::is_same_v<In, Float16>) {
      return {_mm256_castps_si256(_mm256_cvtph_ps(halves))};
    } else {
      return {_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)};
    }
  }
}

// Of 16 bfloat16 numbers the first register takes 0 to 3 and 8 to 11: one
// instruction widens them, and packing puts them in order again.
template <typename In>
constexpr bool kSplit = std::is_same_v<In, BFloat16Bits>;

template <typename In, int n>
inline void load_run(const typename In::raw* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; i += 2) {
    if constexpr (kSplit<In>) {
      const auto halves =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8 * i));
      const auto zero = _mm256_setzero_si256();
      x[i].r = _mm256_unpacklo_epi16(zero, halves);
      x[i + 1].r = _mm256_unpackhi_epi16(zero, halves);
    } else {
      x[i] = load_bits<In>(p + 8 * i);
      x[i + 1] = load_bits<In>(p + 8 * (i + 1));
    }
  }
}

template <typename In, int n>
inline void store_bytes(const Lanes (&x)[n], uint8_t* out) {
  // Truncated to 16 bits where signed saturation keeps every number as it is,
  // and again to bytes, whose sign bit may be a code's.
  const auto low = _mm256_set1_epi16(0xFF);
  const auto pack = [&](int i) {
    return _mm256_and_si256(_mm256_packs_epi32(x[i].r, x[i + 1].r), low);
  };
  const auto a = pack(0);
  const auto b = n == 4 ? pack(n - 2) : a;
  auto bytes = _mm256_packus_epi16(a, b);
  if constexpr (n == 4) {
    if constexpr (kSplit<In>) {
      bytes = _mm256_permute4x64_epi64(bytes, 0xD8);
    } else {
      bytes = _mm256_permutevar8x32_epi32(
          bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), bytes);
  } else {
    const auto first = _mm256_castsi256_si128(bytes);
    const auto second = _mm256_extracti128_si256(bytes, 1);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out),
        kSplit<In> ? _mm_unpacklo_epi64(first, second)
                   : _mm_unpacklo_epi32(first, second));
  }
}

template <typename In, int n>
inline void store_nibbles(const Lanes (&x)[n], uint8_t* out) {
  const auto pack = [&](int i) {
    const auto pairs = _mm256_packs_epi32(x[i].r, x[i + 1].r);
    const auto high = _mm256_srli_epi32(pairs, 12);
    return Lanes{_mm256_or_si256(pairs, high)} & 0xFF;
  };
  const auto a = pack(0);
  const auto b = n == 4 ? pack(n - 2) : a;
  const auto halves = _mm256_packs_epi32(a.r, b.r);
  const auto bytes = _mm256_packus_epi16(halves, halves);
  const auto first = _mm256_castsi256_si128(bytes);
  const auto second = _mm256_extracti128_si256(bytes, 1);
  const auto joined = kSplit<In> ? _mm_unpacklo_epi32(first, second)
                                 : _mm_unpacklo_epi16(first, second);
  auto* target = reinterpret_cast<__m128i*>(out);
  if constexpr (n == 4) {
    _mm_storeu_si128(target, joined);
  } else {
    _mm_storel_epi64(target, joined);
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat32, uint32_t* out) {
  for (int i = 0; i < n; ++i) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * i), x[i].r);
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToBFloat16, uint16_t* out) {
  for (int i = 0; i < n; i += 2) {
    const auto halves = _mm256_packus_epi32(
        _mm256_srli_epi32(x[i].r, 16), _mm256_srli_epi32(x[i + 1].r, 16));
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(out + 8 * i),
        _mm256_permute4x64_epi64(halves, 0xD8));
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat16, uint16_t* out) {
  for (int i = 0; i < n; ++i) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + 8 * i),
        _mm256_cvtps_ph(
            _mm256_castsi256_ps(x[i].r),
            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

} // namespace
} // namespace at::native
