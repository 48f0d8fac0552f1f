#pragma once

// Lanes in SSE2, which every x86-64 machine has; see QuantizeMXLanes.h.

#include <ATen/native/cpu/QuantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXBytesX86.h>

#include <emmintrin.h>

#include <type_traits>

namespace at::native {
namespace {

struct Lanes {
  static constexpr int size = 4;
  __m128i r;

  static Lanes all(int x) {
    return {_mm_set1_epi32(x)};
  }
  static Lanes load(const int* p) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
  }
  void store(int* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), r);
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    return {_mm_add_epi32(a.r, b.r)};
  }
  friend Lanes operator+(Lanes a, int b) {
    return a + all(b);
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    return {_mm_sub_epi32(a.r, b.r)};
  }
  friend Lanes operator&(Lanes a, Lanes b) {
    return {_mm_and_si128(a.r, b.r)};
  }
  friend Lanes operator&(Lanes a, int b) {
    return a & all(b);
  }
  friend Lanes operator|(Lanes a, Lanes b) {
    return {_mm_or_si128(a.r, b.r)};
  }
  friend Lanes operator^(Lanes a, Lanes b) {
    return {_mm_xor_si128(a.r, b.r)};
  }
  friend Lanes operator>>(Lanes a, int bits) {
    return {_mm_sra_epi32(a.r, _mm_cvtsi32_si128(bits))};
  }
  friend Lanes operator<<(Lanes a, int bits) {
    return {_mm_sll_epi32(a.r, _mm_cvtsi32_si128(bits))};
  }
  // All bits of a lane, or none.
  friend Lanes greater(Lanes a, Lanes b) {
    return {_mm_cmpgt_epi32(a.r, b.r)};
  }
  friend Lanes select(Lanes mask, Lanes a, Lanes b) {
    return {_mm_or_si128(
        _mm_and_si128(mask.r, a.r), _mm_andnot_si128(mask.r, b.r))};
  }
  friend Lanes max(Lanes a, Lanes b) {
    return select(greater(a, b), a, b);
  }
  friend Lanes min(Lanes a, Lanes b) {
    return select(greater(a, b), b, a);
  }
  friend Lanes min_floats(Lanes a, Lanes b) {
    return {_mm_castps_si128(
        _mm_min_ps(_mm_castsi128_ps(a.r), _mm_castsi128_ps(b.r)))};
  }
  friend Lanes multiply_floats(Lanes a, Lanes b) {
    return {_mm_castps_si128(
        _mm_mul_ps(_mm_castsi128_ps(a.r), _mm_castsi128_ps(b.r)))};
  }
  friend Lanes to_float(Lanes a) {
    return {_mm_castps_si128(_mm_cvtepi32_ps(a.r))};
  }
  friend Lanes add_floats(Lanes a, Lanes b) {
    return {_mm_castps_si128(
        _mm_add_ps(_mm_castsi128_ps(a.r), _mm_castsi128_ps(b.r)))};
  }
  int largest() const {
    auto x = max(*this, {_mm_shuffle_epi32(r, 0x4E)});
    x = max(x, {_mm_shuffle_epi32(x.r, 0xB1)});
    return _mm_cvtsi128_si32(x.r);
  }
};

// Float32 bits of float16 numbers in the upper halves of the lanes.
inline Lanes widen_float16(Lanes x) {
  const auto sign = x & INT_MIN;
  const Lanes magnitude{_mm_srli_epi32((x ^ sign).r, 3)};
  const auto number = magnitude + (112 << kFraction);
  constexpr int min_normal = 113 << kFraction;
  // As if it had a leading one, less that one: exact, and no subnormal.
  const Lanes subnormal{_mm_castps_si128(_mm_sub_ps(
      _mm_castsi128_ps((number + (1 << kFraction)).r),
      _mm_castsi128_ps(_mm_set1_epi32(min_normal))))};
  const auto is_subnormal = greater(Lanes::all(min_normal), number);
  const auto is_special = greater(number, Lanes::all((143 << kFraction) - 1));
  const auto finite = select(is_subnormal, subnormal, number);
  return (finite + (is_special & (112 << kFraction))) | sign;
}

// Float16 bits, with their sign above, of float32 numbers.
inline Lanes narrow_to_float16(Lanes x) {
  const auto negative = x >> 31;
  const auto magnitude = x & kMagnitude;
  constexpr int min_normal = 113 << kFraction;
  // One addition aligns what becomes a subnormal and rounds it to even.
  const auto unit = Lanes::all(126 << kFraction);
  const auto subnormal =
      add_floats(min(magnitude, Lanes::all(min_normal)), unit) - unit;
  const auto last = (magnitude >> 13) & 1;
  const auto rounded = (magnitude + last + (0xFFF - (112 << kFraction))) >> 13;
  const auto normal = min(rounded, Lanes::all(0x7C00));
  const auto is_subnormal = greater(Lanes::all(min_normal), magnitude);
  const auto number = select(is_subnormal, subnormal, normal);
  const auto is_nan = greater(magnitude, Lanes::all(kInf));
  return select(is_nan, Lanes::all(0x7E00), number | (negative & ~0x7FFF));
}

template <bool is_signed, int n>
inline void load_bytes(const uint8_t* p, Lanes (&x)[n]) {
  const auto zero = _mm_setzero_si128();
  for (int i = 0; i < n; i += 4) {
    const auto bytes =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 4 * i));
    // In the upper byte of each lane, from where a shift brings the sign along.
    for (int half = 0; half < 2; ++half) {
      const auto words = half == 0 ? _mm_unpacklo_epi8(zero, bytes)
                                   : _mm_unpackhi_epi8(zero, bytes);
      const Lanes low{_mm_unpacklo_epi16(zero, words)};
      const Lanes high{_mm_unpackhi_epi16(zero, words)};
      x[i + 2 * half] =
          is_signed ? low >> 24 : Lanes{_mm_srli_epi32(low.r, 24)};
      x[i + 2 * half + 1] =
          is_signed ? high >> 24 : Lanes{_mm_srli_epi32(high.r, 24)};
    }
  }
}

template <typename In>
inline Lanes load_bits(const typename In::raw* p) {
  if constexpr (std::is_same_v<In, Float32>) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
  } else {
    const auto halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    const Lanes upper{_mm_unpacklo_epi16(_mm_setzero_si128(), halves)};
    return std::is_same_v<In, Float16> ? widen_float16(upper) : upper;
  }
}

template <typename In, int n>
inline void load_run(const typename In::raw* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; ++i) {
    x[i] = load_bits<In>(p + 4 * i);
  }
}

template <typename In, int n>
inline void store_bytes(const Lanes (&x)[n], uint8_t* out) {
  // Truncated to 16 bits where signed saturation keeps every number as it is,
  // and again to bytes, whose sign bit may be a code's.
  const auto low = _mm_set1_epi16(0xFF);
  for (int i = 0; i < n; i += 4) {
    const auto a = _mm_packs_epi32(x[i].r, x[i + 1].r);
    const auto b = _mm_packs_epi32(x[i + 2].r, x[i + 3].r);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + 4 * i),
        _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low)));
  }
}

template <typename In, int n>
inline void store_nibbles(const Lanes (&x)[n], uint8_t* out) {
  const auto pack = [&](int i) {
    const auto pairs = _mm_packs_epi32(x[i].r, x[i + 1].r);
    const auto high = _mm_srli_epi32(pairs, 12);
    return (Lanes{_mm_or_si128(pairs, high)} & 0xFF).r;
  };
  for (int i = 0; i < n; i += 4) {
    const auto halves = _mm_packs_epi32(pack(i), pack(i + 2));
    _mm_storel_epi64(
        reinterpret_cast<__m128i*>(out + 2 * i),
        _mm_packus_epi16(halves, halves));
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat32, uint32_t* out) {
  for (int i = 0; i < n; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * i), x[i].r);
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToBFloat16, uint16_t* out) {
  for (int i = 0; i < n; i += 2) {
    // Shifted with the sign, so that signed saturation keeps every number.
    const auto halves = _mm_packs_epi32((x[i] >> 16).r, (x[i + 1] >> 16).r);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * i), halves);
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat16, uint16_t* out) {
  for (int i = 0; i < n; i += 2) {
    const auto halves = _mm_packs_epi32(
        narrow_to_float16(x[i]).r, narrow_to_float16(x[i + 1]).r);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + 4 * i), halves);
  }
}

} // namespace
} // namespace at::native
