#pragma once

// Lanes in NEON, also where there is SVE; see QuantizeMXLanes.h.

#include <ATen/native/cpu/QuantizeMXBlock.h>

#include <arm_neon.h>

#include <type_traits>

namespace at::native {
namespace {

struct Lanes {
  static constexpr int size = 4;
  int32x4_t r;

  static Lanes all(int x) {
    return {vdupq_n_s32(x)};
  }
  static Lanes load(const int* p) {
    return {vld1q_s32(p)};
  }
  void store(int* p) const {
    vst1q_s32(p, r);
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    return {vaddq_s32(a.r, b.r)};
  }
  friend Lanes operator+(Lanes a, int b) {
    return a + all(b);
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    return {vsubq_s32(a.r, b.r)};
  }
  friend Lanes operator&(Lanes a, int b) {
    return {vandq_s32(a.r, vdupq_n_s32(b))};
  }
  friend Lanes operator|(Lanes a, Lanes b) {
    return {vorrq_s32(a.r, b.r)};
  }
  friend Lanes operator^(Lanes a, Lanes b) {
    return {veorq_s32(a.r, b.r)};
  }
  friend Lanes operator>>(Lanes a, int bits) {
    return {vshlq_s32(a.r, vdupq_n_s32(-bits))};
  }
  friend Lanes operator<<(Lanes a, int bits) {
    return {vshlq_s32(a.r, vdupq_n_s32(bits))};
  }
  friend Lanes max(Lanes a, Lanes b) {
    return {vmaxq_s32(a.r, b.r)};
  }
  friend Lanes min(Lanes a, Lanes b) {
    return {vminq_s32(a.r, b.r)};
  }
  // All bits of a lane, or none.
  friend Lanes greater(Lanes a, Lanes b) {
    return {vreinterpretq_s32_u32(vcgtq_s32(a.r, b.r))};
  }
  friend Lanes select(Lanes mask, Lanes a, Lanes b) {
    return {vbslq_s32(vreinterpretq_u32_s32(mask.r), a.r, b.r)};
  }
  friend Lanes min_floats(Lanes a, Lanes b) {
    return {vreinterpretq_s32_f32(
        vminq_f32(vreinterpretq_f32_s32(a.r), vreinterpretq_f32_s32(b.r)))};
  }
  friend Lanes multiply_floats(Lanes a, Lanes b) {
    return {vreinterpretq_s32_f32(
        vmulq_f32(vreinterpretq_f32_s32(a.r), vreinterpretq_f32_s32(b.r)))};
  }
  friend Lanes to_float(Lanes a) {
    return {vreinterpretq_s32_f32(vcvtq_f32_s32(a.r))};
  }
  friend Lanes add_floats(Lanes a, Lanes b) {
    return {vreinterpretq_s32_f32(
        vaddq_f32(vreinterpretq_f32_s32(a.r), vreinterpretq_f32_s32(b.r)))};
  }
  int largest() const {
    return vmaxvq_s32(r);
  }
};

template <bool is_signed, int n>
inline void load_bytes(const uint8_t* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; i += 2) {
    const auto bytes = vld1_u8(p + 4 * i);
    if constexpr (is_signed) {
      const auto halves = vmovl_s8(vreinterpret_s8_u8(bytes));
      x[i].r = vmovl_s16(vget_low_s16(halves));
      x[i + 1].r = vmovl_s16(vget_high_s16(halves));
    } else {
      const auto halves = vmovl_u8(bytes);
      x[i].r = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(halves)));
      x[i + 1].r = vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(halves)));
    }
  }
}

template <typename In>
inline Lanes load_bits(const typename In::raw* p) {
  if constexpr (std::is_same_v<In, Float32>) {
    return {vreinterpretq_s32_u32(vld1q_u32(p))};
  } else if constexpr (std::is_same_v<In, Float16>) {
    // Conversions from float16 flush no subnormal.
    const auto numbers = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
    return {vreinterpretq_s32_f32(numbers)};
  } else {
    return {vreinterpretq_s32_u32(vshll_n_u16(vld1_u16(p), 16))};
  }
}

template <typename In, int n>
inline void load_run(const typename In::raw* p, Lanes (&x)[n]) {
  for (int i = 0; i < n; ++i) {
    x[i] = load_bits<In>(p + 4 * i);
  }
}

// The lower halves of the lanes of a and b.
inline uint16x8_t lower_halves(int32x4_t a, int32x4_t b) {
  return vuzp1q_u16(vreinterpretq_u16_s32(a), vreinterpretq_u16_s32(b));
}

inline uint8x16_t lower_bytes(uint16x8_t a, uint16x8_t b) {
  return vuzp1q_u8(vreinterpretq_u8_u16(a), vreinterpretq_u8_u16(b));
}

template <typename In, int n>
inline void store_bytes(const Lanes (&x)[n], uint8_t* out) {
  for (int i = 0; i < n; i += 4) {
    vst1q_u8(
        out + 4 * i,
        lower_bytes(
            lower_halves(x[i].r, x[i + 1].r),
            lower_halves(x[i + 2].r, x[i + 3].r)));
  }
}

template <typename In, int n>
inline void store_nibbles(const Lanes (&x)[n], uint8_t* out) {
  const auto pack = [&](int i) {
    const auto pairs = vreinterpretq_u32_u16(lower_halves(x[i].r, x[i + 1].r));
    return vreinterpretq_s32_u32(vsraq_n_u32(pairs, pairs, 12));
  };
  for (int i = 0; i < n; i += 4) {
    const auto halves = lower_halves(pack(i), pack(i + 2));
    vst1_u8(out + 2 * i, vget_low_u8(lower_bytes(halves, halves)));
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat32, uint32_t* out) {
  for (int i = 0; i < n; ++i) {
    vst1q_u32(out + 4 * i, vreinterpretq_u32_s32(x[i].r));
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToBFloat16, uint16_t* out) {
  for (int i = 0; i < n; i += 2) {
    const auto halves = vuzp2q_u16(
        vreinterpretq_u16_s32(x[i].r), vreinterpretq_u16_s32(x[i + 1].r));
    vst1q_u16(out + 4 * i, halves);
  }
}

template <int n>
inline void store_values(const Lanes (&x)[n], ToFloat16, uint16_t* out) {
  for (int i = 0; i < n; ++i) {
    const auto numbers = vcvt_f16_f32(vreinterpretq_f32_s32(x[i].r));
    vst1_u16(out + 4 * i, vreinterpret_u16_f16(numbers));
  }
}

inline void prefetch_line(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

struct Bytes {
  uint8x16_t r;

  static Bytes load(const uint8_t* p) {
    return {vld1q_u8(p)};
  }
  void store(uint8_t* p) const {
    vst1q_u8(p, r);
  }
  friend Bytes interleave_low(Bytes a, Bytes b) {
    return {vzip1q_u8(a.r, b.r)};
  }
  friend Bytes interleave_high(Bytes a, Bytes b) {
    return {vzip2q_u8(a.r, b.r)};
  }
  friend Bytes low_nibbles(Bytes a) {
    return {vandq_u8(a.r, vdupq_n_u8(0xF))};
  }
  friend Bytes high_nibbles(Bytes a) {
    return {vshrq_n_u8(a.r, 4)};
  }
};

} // namespace
} // namespace at::native
