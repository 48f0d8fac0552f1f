#pragma once

// Included by QuantizeMXKernel.cpp alone: values of codes, and one block in
// portable code.

#include <ATen/native/cpu/QuantizeMXBlock.h>

#include <array>

namespace at::native {
namespace {

// Float32 bits of every code of a byte. All values are normal or zero there.
template <int F>
constexpr std::array<uint32_t, 256> make_values() {
  constexpr const MXFormat& format = kMXFormats[F];
  std::array<uint32_t, 256> values{};
  for (int byte = 0; byte < 256; ++byte) {
    const int code = byte & (2 * format.sign_bit() - 1);
    const bool negative = (code & format.sign_bit()) != 0;
    int magnitude = code & (format.sign_bit() - 1);
    if (format.twos_complement && negative) {
      magnitude = format.sign_bit() - magnitude;
    }
    uint32_t bits = 0;
    if (format.nan_code != 0 && magnitude > format.max_code) {
      const bool is_inf = format.inf_code != 0 && magnitude == format.inf_code;
      bits = is_inf ? kInf : kQuietNaN;
    } else if (magnitude != 0) {
      // field and fraction of the code, with a leading one shifted into place
      int field = magnitude >> format.mantissa_bits;
      int significand = magnitude & ((1 << format.mantissa_bits) - 1);
      const int leading = 1 << format.mantissa_bits;
      significand += field == 0 ? 0 : leading;
      field = field == 0 ? 1 : field;
      while (significand < leading) {
        significand *= 2;
        --field;
      }
      bits = static_cast<uint32_t>(field + kE8M0Bias - format.bias())
              << kFraction |
          static_cast<uint32_t>(significand - leading)
              << (kFraction - format.mantissa_bits);
    }
    const bool signed_value = negative && bits != kQuietNaN;
    values[byte] = bits | (signed_value ? ~kMagnitude : 0);
  }
  return values;
}

// Bits of value * 2^(scale - 127), exact or Inf; scale isn't NaN.
inline uint32_t scaled_bits(uint32_t value, int scale) {
  const uint32_t magnitude = value & kMagnitude;
  const uint32_t sign = value & ~kMagnitude;
  if (magnitude == 0 || magnitude >= kInf) {
    return value;
  }
  const int field =
      static_cast<int>(magnitude >> kFraction) + scale - kE8M0Bias;
  const uint32_t fraction = magnitude & (kMinNormal - 1);
  if (field >= 255) {
    return sign | kInf;
  }
  if (field >= 1) {
    return sign | static_cast<uint32_t>(field) << kFraction | fraction;
  }
  return sign | (fraction | kMinNormal) >> (1 - field);
}

template <int... positions>
constexpr auto make_all(std::integer_sequence<int, positions...>) {
  return std::array{make_values<positions>()...};
}

// By the format's position in the table.
inline constexpr auto kValues =
    make_all(std::make_integer_sequence<int, int{kMXFormats.size()}>{});

// Any block, one element after the other: for those whose scale is NaN, or so
// low that a product may be subnormal.
template <typename Out>
void dequantize_block(
    const uint8_t* payload,
    int64_t stride,
    int64_t block_size,
    const MXFormat& format,
    int scale,
    typename Out::raw* output) {
  if (scale == kMXScaleNaN) {
    std::fill(output, output + block_size, Out::nan);
    return;
  }
  const auto& values = kValues[&format - kMXFormats.data()];
  const int per_byte = format.codes_per_byte();
  for (const auto i : c10::irange(block_size)) {
    const int byte = payload[i / per_byte * stride];
    const int code = per_byte == 1 || i % 2 == 0 ? byte : byte >> 4;
    output[i] = Out::round(scaled_bits(values[code], scale));
  }
}

} // namespace
} // namespace at::native
