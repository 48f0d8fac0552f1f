#pragma once

// Included by QuantizeMXKernel.cpp alone, once for each instruction set: how a
// number is encoded, and one block in portable code.
//
// All arithmetic that decides a code or a scale is on integers, or in float32
// steps that meet no subnormal and are exact or one rounding to even. So
// neither flush-to-zero nor the instruction set nor the number of threads can
// change a byte.

#include <ATen/native/cpu/QuantizeMXNumbers.h>
#include <ATen/native/quantized/QuantizeMX.h>

#include <cstring>

namespace at::native {
namespace {

// Blocks that are worked on together: their maxima share one register.
constexpr int kGroup = 32;

// ---- scales ----------------------------------------------------------------

// Bits of a magnitude with the exponent field of a subnormal made what it would
// be in a wider format: zero or negative.
inline int32_t normalized(uint32_t magnitude) {
  const float number = static_cast<float>(static_cast<int32_t>(magnitude));
  const int32_t subnormal =
      c10::bit_cast<int32_t>(number) - (kSubnormalExponent << kFraction);
  return magnitude < kMinNormal ? subnormal : static_cast<int32_t>(magnitude);
}

inline uint8_t scale_byte(
    uint32_t amax,
    MXScaleRule rule,
    const MXFormat& format) {
  if (amax >= kInf) {
    return kMXScaleNaN;
  }
  const int byte = rule.biased_exponent<kFraction>(normalized(amax), format);
  return static_cast<uint8_t>(std::clamp(byte, 0, kE8M0Max));
}

// ---- codes -----------------------------------------------------------------
//
// A magnitude's float32 bits less an "offset", which the block's scale gives,
// are w: its exponent field is 127 + f where the code's is f. With ulp = the
// power of two of w, that of the smallest normal code at least, the addition
// w + ulp * 2^dropped leaves as many fraction bits as a code has, and rounds to
// even. The code is then the difference of exponent fields and what is below.
struct MXEncoding {
  int base; // a block whose scale byte is above has no code of a subnormal
  int bias;
  int dropped; // fraction bits of float32 that a code has not
  int lowest; // of w: rounds to zero, and is a normal number
  int highest; // of w: the largest code
  int min_ulp;
  int carried; // by ulp, in the code's place
  int sign_shift; // of the sign bit to the code's
  int sign_bit;

  explicit MXEncoding(const MXFormat& format)
      : base(format.bias() + format.mantissa_bits),
        bias(kE8M0Bias + format.bias()),
        dropped(kFraction - format.mantissa_bits),
        lowest((kE8M0Bias - format.mantissa_bits - 3) * (1 << kFraction)),
        highest((kE8M0Bias << kFraction) + format.max_code * (1 << dropped)),
        min_ulp((kE8M0Bias + 1) << kFraction),
        carried((kE8M0Bias + 1) << format.mantissa_bits),
        sign_shift(32 - format.bits),
        sign_bit(format.sign_bit()) {}

  int offset(int scale) const {
    return (scale - bias) * (1 << kFraction);
  }
};

// Of a block of zeros: they stay below every code.
constexpr int kOffsetOfZeros = 1 << 30;

// The one definition; Lanes are 32-bit integers with operators, or one.
template <typename Lanes>
inline Lanes encode(const Lanes& magnitude_less_offset, const MXEncoding& e) {
  const auto w = min(
      max(magnitude_less_offset, Lanes::all(e.lowest)), Lanes::all(e.highest));
  const auto ulp = max(w & kInf, Lanes::all(e.min_ulp));
  const auto addend = ulp + (e.dropped << kFraction);
  return add_floats(w, addend) - addend + (ulp >> e.dropped) + -e.carried;
}

template <bool twos_complement, typename Lanes>
inline Lanes with_sign(
    const Lanes& code,
    const Lanes& bits,
    const MXEncoding& e) {
  if constexpr (twos_complement) {
    const auto negative = bits >> 31;
    return (code ^ negative) - negative;
  } else {
    return code | ((bits >> e.sign_shift) & e.sign_bit);
  }
}

// One lane, in portable code. Sums wrap around, as those of vectors do.
struct Lane {
  int value;

  static Lane all(int x) {
    return {x};
  }
  friend Lane operator+(Lane a, Lane b) {
    return {static_cast<int>(
        static_cast<uint32_t>(a.value) + static_cast<uint32_t>(b.value))};
  }
  friend Lane operator+(Lane a, int b) {
    return a + Lane{b};
  }
  friend Lane operator-(Lane a, Lane b) {
    return {static_cast<int>(
        static_cast<uint32_t>(a.value) - static_cast<uint32_t>(b.value))};
  }
  friend Lane operator&(Lane a, int b) {
    return {a.value & b};
  }
  friend Lane operator|(Lane a, Lane b) {
    return {a.value | b.value};
  }
  friend Lane operator^(Lane a, Lane b) {
    return {a.value ^ b.value};
  }
  friend Lane operator>>(Lane a, int bits) {
    return {a.value >> bits};
  }
  friend Lane max(Lane a, Lane b) {
    return {std::max(a.value, b.value)};
  }
  friend Lane min(Lane a, Lane b) {
    return {std::min(a.value, b.value)};
  }
  friend Lane add_floats(Lane a, Lane b) {
    return {c10::bit_cast<int>(
        c10::bit_cast<float>(a.value) + c10::bit_cast<float>(b.value))};
  }
};

// Calls f with n, as a constant where it is one of these: loops of a known
// length or stride become vector instructions without remainder.
template <int64_t... constants, typename Func>
inline void with_constant(int64_t n, Func&& f) {
  const bool known =
      ((n == constants &&
        (f(std::integral_constant<int64_t, constants>{}), true)) ||
       ...);
  if (!known) {
    f(n);
  }
}

// ---- one block, any size and stride ----------------------------------------

// One element after the other: for blocks that the vector code
// leaves out, because they hold NaN or Infinity or count subnormals.
template <typename In>
uint8_t quantize_block(
    const typename In::raw* input,
    int64_t stride,
    int64_t block_size,
    const MXFormat& format,
    MXScaleRule rule,
    uint8_t* payload) {
  // As integers: for sign-cleared bits their order is numeric order, and NaN
  // sorts highest.
  uint32_t amax = 0;
  for (int64_t i = 0; i < block_size; ++i) {
    amax = std::max(amax, In::bits(input[i * stride]) & kMagnitude);
  }
  const int per_byte = format.codes_per_byte();
  const uint8_t scale = scale_byte(amax, rule, format);
  if (scale == kMXScaleNaN) {
    std::memset(payload, format.nan_code, block_size / per_byte);
    return scale;
  }
  const MXEncoding e(format);
  const Lane offset{amax == 0 ? 0 : e.offset(scale)};
  const auto code = [&](int64_t i) {
    const uint32_t bits = In::bits(input[i * stride]);
    const uint32_t magnitude = bits & kMagnitude;
    // Where subnormals vanish their fields are no less right as they are; the
    // difference of a lower one to the offset would not fit.
    const Lane x{
        scale > e.base ? static_cast<int>(magnitude) : normalized(magnitude)};
    const Lane sign{static_cast<int>(bits)};
    const auto c = encode(x - offset, e);
    return static_cast<uint8_t>((format.twos_complement
                                     ? with_sign<true>(c, sign, e)
                                     : with_sign<false>(c, sign, e))
                                    .value);
  };
  for (int64_t i = 0; i < block_size / per_byte; ++i) {
    payload[i] = per_byte == 1
        ? code(i)
        : static_cast<uint8_t>(code(2 * i) | code(2 * i + 1) << 4);
  }
  return scale;
}

} // namespace
} // namespace at::native
