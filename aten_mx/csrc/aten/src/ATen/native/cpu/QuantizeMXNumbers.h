#pragma once

// Included by QuantizeMXKernel.cpp alone: float32 bits, and what becomes them
// and what they become, one number at a time.

#include <c10/util/bit_cast.h>

#include <algorithm>
#include <cstdint>

namespace at::native {
namespace {

constexpr uint32_t kMagnitude = 0x7FFFFFFF;
constexpr uint32_t kInf = 0x7F800000;
constexpr uint32_t kQuietNaN = 0x7FC00000;
constexpr uint32_t kMinNormal = 0x00800000;
constexpr int kFraction = 23;
constexpr int kE8M0Bias = 127;
constexpr int kE8M0Max = 254;
// A subnormal float32 is its bits, read as an integer, times 2^-149.
constexpr int kSubnormalExponent = 149;

// ---- float32 bits of the three input dtypes --------------------------------

struct Float32 {
  using raw = uint32_t;
  static uint32_t bits(raw x) {
    return x;
  }
};

struct BFloat16Bits {
  using raw = uint16_t;
  static uint32_t bits(raw x) {
    return static_cast<uint32_t>(x) << 16;
  }
};

struct Float16 {
  using raw = uint16_t;
  static uint32_t bits(raw x) {
    const uint32_t magnitude = x & 0x7FFF;
    const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
    // As float(integer), which is never subnormal, times 2^-24.
    const uint32_t subnormal = c10::bit_cast<uint32_t>(
        static_cast<float>(static_cast<int>(magnitude)));
    uint32_t bits = (magnitude << 13) + (112u << kFraction);
    bits = magnitude >= 0x7C00 ? bits + (112u << kFraction) : bits;
    bits = magnitude < 0x0400 ? subnormal - (24u << kFraction) : bits;
    bits = magnitude == 0 ? 0 : bits;
    return bits | sign;
  }
};

// ---- float32 bits as the three output dtypes --------------------------------

struct ToFloat32 {
  using raw = uint32_t;
  static constexpr raw nan = 0x7FC00000;
  static raw round(uint32_t bits) {
    return bits;
  }
};

struct ToBFloat16 {
  using raw = uint16_t;
  static constexpr raw nan = 0x7FC0;
  static raw round(uint32_t bits) {
    return static_cast<raw>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
};

struct ToFloat16 {
  using raw = uint16_t;
  static constexpr raw nan = 0x7E00;
  static raw round(uint32_t bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const auto sign = static_cast<raw>((bits >> 16) & 0x8000);
    // The smallest normal float16 is 2^-14; below, the unit is 2^-24.
    constexpr uint32_t min_normal = 113u << kFraction;
    const uint32_t shift =
        std::min(126u - std::min(magnitude >> kFraction, 126u), 25u);
    const uint32_t significand = (magnitude & (kMinNormal - 1)) | kMinNormal;
    const uint32_t half = shift == 0 ? 0 : (1u << (shift - 1)) - 1;
    const uint32_t subnormal =
        (significand + half + ((significand >> shift) & 1)) >> shift;
    const uint32_t normal =
        (magnitude - (112u << kFraction) + 0xFFF + ((magnitude >> 13) & 1)) >>
        13;
    uint32_t code =
        magnitude < min_normal ? subnormal : std::min(normal, 0x7C00u);
    code = magnitude > kInf ? nan : code;
    return static_cast<raw>(code | (magnitude > kInf ? 0 : sign));
  }
};

} // namespace
} // namespace at::native
