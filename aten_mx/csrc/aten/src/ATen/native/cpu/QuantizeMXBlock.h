#pragma once

// Included by QuantizeMXKernel.cpp alone, once for each instruction set:
// numbers, dtypes, and one block in portable code.
//
// All arithmetic that decides a code or a scale is on integers, or in float32
// steps that are exact and meet no subnormal. So neither flush-to-zero nor the
// instruction set nor the number of threads can change a byte.

#include <ATen/native/quantized/QuantizeMX.h>

#include <c10/util/bit_cast.h>

#include <cstring>

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

// Blocks that are worked on together: their maxima share one register.
constexpr int kGroup = 32;
// Elements that the portable code keeps beside the block.
constexpr int64_t kChunk = 256;

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

// ---- one block, any size and stride, any instruction set -------------------

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

// Code without sign of a magnitude whose exponent field counts from the base; a
// negative one is below every code.
template <int F>
inline uint32_t encode(int32_t shifted) {
  using E = Encoding<F, kFraction>;
  constexpr int code_shift = 24;
  const int32_t w = std::min<int32_t>(shifted, E::max);
  const int32_t missing = std::clamp(E::first_normal - (w >> kFraction), 0, 31);
  const uint32_t significand =
      (static_cast<uint32_t>(w) & (kMinNormal - 1)) | kMinNormal;
  const auto denormal =
      static_cast<int32_t>((significand << E::spare) >> missing);
  const int32_t above = w - ((E::first_normal - 1) << kFraction);
  const int32_t normal = std::max(above, 0) << E::spare;
  // Each of the two is right where it is the larger one.
  const auto full = static_cast<uint32_t>(std::max(normal, denormal));
  const uint32_t odd = (full >> code_shift) & 1;
  return (full + ((1u << (code_shift - 1)) - 1) + odd) >> code_shift;
}

template <int F>
inline uint8_t with_sign(uint32_t code, uint32_t bits) {
  constexpr const MXFormat& format = kMXFormats[F];
  if constexpr (format.twos_complement) {
    const auto mask = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
    return static_cast<uint8_t>((code ^ mask) - mask);
  } else {
    return static_cast<uint8_t>(code | ((bits >> 31) * format.sign_bit()));
  }
}

// What the codes of a block count from, given its scale.
template <int F>
inline int32_t exponent_offset(uint8_t scale) {
  return (scale - Encoding<F, kFraction>::base) * (1 << kFraction);
}

// Any lower magnitude is less than half the smallest code. The bound keeps the
// difference to the offset within 32 bits.
template <int F>
constexpr int32_t kLowest = -Encoding<F, kFraction>::base * (1 << kFraction);

// Whether every subnormal of the block rounds to zero.
template <int F>
inline bool subnormals_vanish(uint8_t scale) {
  return scale > Encoding<F, kFraction>::base;
}

// Code of a float32, as with_sign.
template <int F, bool subnormals>
inline uint8_t encode_bits(uint32_t bits, int32_t offset, int32_t lowest) {
  auto magnitude = static_cast<int32_t>(bits & kMagnitude);
  if constexpr (subnormals) {
    magnitude = std::max(normalized(bits & kMagnitude), lowest);
  }
  return with_sign<F>(encode<F>(magnitude - offset), bits);
}

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

template <int F>
inline void store_codes(const uint8_t* codes, int64_t n, uint8_t* payload) {
  if constexpr (kMXFormats[F].codes_per_byte() == 2) {
    for (int64_t i = 0; i < n / 2; ++i) {
      payload[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
    }
  } else {
    std::memcpy(payload, codes, n);
  }
}

// Elements of the block that are encoded together: all where its size is known.
inline int64_t chunk_of(int64_t block_size, int64_t start) {
  return std::min(kChunk, block_size - start);
}

template <int64_t size>
constexpr auto chunk_of(std::integral_constant<int64_t, size> all, int64_t) {
  static_assert(size <= kChunk);
  return all;
}

template <int F, typename In, typename Stride, typename Size>
uint8_t quantize_block_of(
    const typename In::raw* input,
    Stride stride,
    Size block_size,
    MXScaleRule rule,
    uint8_t* payload) {
  constexpr const MXFormat& format = kMXFormats[F];
  // As integers: for sign-cleared bits their order is numeric order, and NaN
  // sorts highest.
  uint32_t amax = 0;
  for (int64_t i = 0; i < block_size; ++i) {
    amax = std::max(amax, In::bits(input[i * stride]) & kMagnitude);
  }
  const uint8_t scale = scale_byte(amax, rule, format);
  if (scale == kMXScaleNaN) {
    std::memset(payload, format.nan_code, block_size / format.codes_per_byte());
    return scale;
  }
  const int32_t offset = exponent_offset<F>(scale);
  for (int64_t start = 0; start < block_size; start += kChunk) {
    const auto n = chunk_of(block_size, start);
    const auto* chunk = input + start * stride;
    uint8_t codes[kChunk];
    if (subnormals_vanish<F>(scale)) {
      for (int64_t i = 0; i < n; ++i) {
        codes[i] = encode_bits<F, false>(
            In::bits(chunk[i * stride]), offset, kLowest<F>);
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        codes[i] = encode_bits<F, true>(
            In::bits(chunk[i * stride]), offset, kLowest<F>);
      }
    }
    store_codes<F>(codes, n, payload + start / format.codes_per_byte());
  }
  return scale;
}

template <int F, typename In>
uint8_t quantize_block(
    const typename In::raw* input,
    int64_t stride,
    int64_t block_size,
    MXScaleRule rule,
    uint8_t* payload) {
  if (stride != 1) {
    return quantize_block_of<F, In>(input, stride, block_size, rule, payload);
  }
  constexpr std::integral_constant<int64_t, 1> contiguous;
  uint8_t scale = 0;
  with_constant<16, 32>(block_size, [&](auto size) {
    scale = quantize_block_of<F, In>(input, contiguous, size, rule, payload);
  });
  return scale;
}

} // namespace
} // namespace at::native
