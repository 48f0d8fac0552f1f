#pragma once

// What QuantizeMXLanesAvx2.h and QuantizeMXLanesSse2.h have in common.

#include <cstdint>

#include <emmintrin.h>

namespace at::native {
namespace {

inline void prefetch_line(uintptr_t address) {
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

struct Bytes {
  __m128i r;

  static Bytes load(const uint8_t* p) {
    return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
  }
  void store(uint8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), r);
  }
  friend Bytes interleave_low(Bytes a, Bytes b) {
    return {_mm_unpacklo_epi8(a.r, b.r)};
  }
  friend Bytes interleave_high(Bytes a, Bytes b) {
    return {_mm_unpackhi_epi8(a.r, b.r)};
  }
  friend Bytes low_nibbles(Bytes a) {
    return {_mm_and_si128(a.r, _mm_set1_epi8(0xF))};
  }
  friend Bytes high_nibbles(Bytes a) {
    return low_nibbles(Bytes{_mm_srli_epi16(a.r, 4)});
  }
};

} // namespace
} // namespace at::native
