#pragma once

// What quantize_mx and dequantize_mx are about: the element formats, the scale
// modes and the layout of a swizzled scale. One row of a table each; the rest
// follows from the row.

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace at::native {

// An element format. A code is the integer that is stored; its value is the
// number it means before the block's scale.
// Source: OCP Microscaling Formats (MX) v1.0, section 5.3.
struct MXFormat {
  std::string_view name;
  ScalarType dtype; // Undefined: PyTorch has none
  int bits;
  int exponent_bits;
  int mantissa_bits;
  int max_code; // of the largest finite magnitude
  int inf_code; // 0: the format has no infinity
  int nan_code; // 0: no NaN, the scale alone carries it
  bool twos_complement;

  // A one-bit exponent (INT8) has bias 1: codes 0 to 127 are then k / 64.
  constexpr int bias() const {
    return std::max(1, (1 << (exponent_bits - 1)) - 1);
  }
  constexpr int emax() const {
    return (max_code >> mantissa_bits) - bias();
  }
  constexpr int max_mantissa() const {
    return max_code & ((1 << mantissa_bits) - 1);
  }
  constexpr int sign_bit() const {
    return 1 << (bits - 1);
  }
  constexpr int codes_per_byte() const {
    return 8 / bits;
  }
  constexpr bool has_dtype() const {
    return dtype != ScalarType::Undefined;
  }
  // Payload of the string overloads: raw bytes below eight bits.
  constexpr ScalarType payload_dtype() const {
    return bits == 8 && has_dtype() ? dtype : ScalarType::Byte;
  }
};

// INT8 is a row like the others because its magnitudes are those of a float
// with one exponent bit and six fraction bits (implied scale 2^-6).
// clang-format off
inline constexpr std::array kMXFormats{
    // name, dtype,
    //     bits, exponent bits, mantissa bits, max, inf, nan, two's complement
    MXFormat{"fp8_e4m3", ScalarType::Float8_e4m3fn,
        8, 4, 3, 0b0'1111'110, 0,    0b0'1111'111, false},
    MXFormat{"fp8_e5m2", ScalarType::Float8_e5m2,
        8, 5, 2, 0b0'11110'11, 0x7C, 0b0'11111'11, false},
    MXFormat{"fp6_e2m3", ScalarType::Undefined,
        6, 2, 3, 0b0'11'111,   0,    0,            false},
    MXFormat{"fp6_e3m2", ScalarType::Undefined,
        6, 3, 2, 0b0'111'11,   0,    0,            false},
    MXFormat{"fp4_e2m1", ScalarType::Float4_e2m1fn_x2,
        4, 2, 1, 0b0'11'1,     0,    0,            false},
    MXFormat{"int8",     ScalarType::Char,
        8, 1, 6, 0b0'1'111111, 0,    0,            true},
};
// clang-format on

// What every kernel assumes about a row.
constexpr bool mx_is_supported(const MXFormat& format) {
  const int magnitudes = 1 << (format.exponent_bits + format.mantissa_bits);
  return format.exponent_bits >= 1 && format.mantissa_bits >= 1 &&
      1 + format.exponent_bits + format.mantissa_bits == format.bits &&
      format.codes_per_byte() <= 2 && format.max_code < magnitudes &&
      format.inf_code < magnitudes && format.nan_code < magnitudes &&
      // With one exponent bit a code is a number, which can be negated; it must
      // not share its byte.
      (!format.twos_complement ||
       (format.exponent_bits == 1 && format.codes_per_byte() == 1)) &&
      // Codes above the largest finite one are infinity and NaN.
      (format.inf_code == 0 || format.nan_code != 0);
}

constexpr bool mx_all_are_supported() {
  for (const auto& format : kMXFormats) {
    if (!mx_is_supported(format)) {
      return false;
    }
  }
  return true;
}
static_assert(mx_all_are_supported());

// A scale mode: what to add to the bits of a block's largest magnitude, whose
// fraction field has fraction_bits bits, so that the carry into the exponent
// rounds it up where the mode says so. A mode that no addend expresses has 0
// here and a branch in MXScaleRule.
struct MXScaleMode {
  std::string_view name;
  int64_t value; // as callers pass it
  uint32_t (*addend)(const MXFormat& format, int fraction_bits);
};

inline constexpr std::array kMXScaleModes{
    MXScaleMode{
        "floor",
        0,
        [](const MXFormat& /*format*/, int /*fraction_bits*/) -> uint32_t {
          return 0;
        }},
    MXScaleMode{
        "ceil",
        1,
        [](const MXFormat& /*format*/, int fraction_bits) -> uint32_t {
          return (1u << fraction_bits) - 1;
        }},
    MXScaleMode{
        "even",
        2,
        [](const MXFormat& format, int fraction_bits) -> uint32_t {
          return 1u << (fraction_bits - format.mantissa_bits - 1);
        }},
    MXScaleMode{
        "rceil",
        3,
        [](const MXFormat& format, int fraction_bits) -> uint32_t {
          return (1u << fraction_bits) - 1 -
              (static_cast<uint32_t>(format.max_mantissa())
               << (fraction_bits - format.mantissa_bits));
        }},
};

// Rounds up by one binade at most, which is what the kernels allow for.
constexpr bool mx_modes_carry_once() {
  for (const auto& mode : kMXScaleModes) {
    for (const auto& format : kMXFormats) {
      if (mode.addend(format, 23) >= 1u << 23) {
        return false;
      }
    }
  }
  return true;
}
static_assert(mx_modes_carry_once());

// How the bits of a block's largest magnitude become the exponent of its scale:
// a mode and what it needs to know of the format. The one place for it: Bits
// are a number in portable code, lanes in AVX-512, a tensor in the composite.
struct MXScaleRule {
  uint32_t addend; // to float32 bits

  constexpr MXScaleRule(const MXScaleMode& mode, const MXFormat& format)
      : addend(mode.addend(format, 23)) {}

  // X + 127 before it is clamped. The fraction field of amax has the upper
  // fraction_bits of float32's 23, and what was cut off sets its last bit.
  // Where a subnormal amax counts, its exponent field is what it would be in a
  // wider format: zero or negative. All Bits have +, & and >> with an int.
  template <int fraction_bits, typename Bits>
  constexpr Bits biased_exponent(const Bits& amax, const MXFormat& format)
      const {
    const int rounding = static_cast<int>(addend >> (23 - fraction_bits));
    const int emax = format.emax() << fraction_bits;
    return (amax + (rounding - emax)) >> fraction_bits;
  }
};

// The upper half of an addend is the addend to the upper half of float32 bits.
constexpr bool mx_addends_can_be_halved() {
  for (const auto& mode : kMXScaleModes) {
    for (const auto& format : kMXFormats) {
      if (mode.addend(format, 23) >> 16 != mode.addend(format, 7)) {
        return false;
      }
    }
  }
  return true;
}
static_assert(mx_addends_can_be_halved());

// A call names a row by one of these, so no two rows share it.
template <typename Rows, typename Key>
constexpr bool mx_are_distinct(const Rows& rows, Key key) {
  for (const auto& row : rows) {
    const auto same = [&](const auto& other) { return key(other) == key(row); };
    if (std::count_if(rows.begin(), rows.end(), same) != 1) {
      return false;
    }
  }
  return true;
}
static_assert(mx_are_distinct(kMXFormats, [](const auto& format) {
  return format.name;
}));
static_assert(mx_are_distinct(kMXScaleModes, [](const auto& mode) {
  return mode.name;
}));
static_assert(mx_are_distinct(kMXScaleModes, [](const auto& mode) {
  return mode.value;
}));

inline constexpr int kMXScaleNaN = 0xFF;

// A swizzled scale is laid out in tiles of 128 rows by 4 columns. A tile is 32
// rows of 4 groups of 4 columns.
inline constexpr int64_t kMXSwizzleNone = 0;
inline constexpr int64_t kMXSwizzle32x4x4 = 1;
inline constexpr int64_t kMXSwizzleBlockSize = 32;
inline constexpr int64_t kMXTileRows = 128;
inline constexpr int64_t kMXTileColumns = 4;
inline constexpr int64_t kMXTileGroups = 4;
inline constexpr int64_t kMXGroupRows = kMXTileRows / kMXTileGroups;

} // namespace at::native
