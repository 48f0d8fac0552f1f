#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace at::native {

// Microscaling (MX) element formats, one row each. A code is the integer that
// is stored; its value is the number it means before the block's scale.
// Source: OCP Microscaling Formats (MX) v1.0, section 5.3.
struct MXFormat {
  std::string_view name;
  // kFloat etc. never occur here, so Undefined can stand for "PyTorch has none"
  ScalarType dtype;
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
  // Payload of the string overloads: raw bytes below eight bits.
  constexpr ScalarType payload_dtype() const {
    return bits == 8 ? dtype : ScalarType::Byte;
  }
};

// INT8 is a row like the others because its magnitudes are those of a float
// with one exponent bit and six fraction bits (implied scale 2^-6).
// clang-format off
inline constexpr std::array<MXFormat, 6> kMXFormats{{
    // name, dtype, bits, exponent bits, mantissa bits, max, inf, nan
    {"fp8_e4m3", ScalarType::Float8_e4m3fn,    8, 4, 3, 0b0'1111'110, 0,    0b0'1111'111, false},
    {"fp8_e5m2", ScalarType::Float8_e5m2,      8, 5, 2, 0b0'11110'11, 0x7C, 0b0'11111'11, false},
    {"fp6_e2m3", ScalarType::Undefined,        6, 2, 3, 0b0'11'111,   0,    0,            false},
    {"fp6_e3m2", ScalarType::Undefined,        6, 3, 2, 0b0'111'11,   0,    0,            false},
    {"fp4_e2m1", ScalarType::Float4_e2m1fn_x2, 4, 2, 1, 0b0'11'1,     0,    0,            false},
    {"int8",     ScalarType::Char,             8, 1, 6, 0b0'1'111111, 0,    0,            true},
}};
// clang-format on

enum class MXScaleMode : int64_t { Floor = 0, Ceil = 1, Even = 2, Rceil = 3 };

inline constexpr int kMXScaleNaN = 0xFF;
inline constexpr int64_t kMXSwizzleNone = 0;
inline constexpr int64_t kMXSwizzle32x4x4 = 1;
inline constexpr int64_t kMXSwizzleBlockSize = 32;
inline constexpr int64_t kMXTileRows = 128;
inline constexpr int64_t kMXTileColumns = 4;

// What to add to the bits of a block's largest magnitude, whose fraction field
// has fraction_bits bits, so that the carry into the exponent rounds it up.
constexpr uint32_t mx_rounding_addend(
    const MXFormat& format,
    MXScaleMode mode,
    int fraction_bits) {
  const uint32_t below_carry = (1u << fraction_bits) - 1;
  const int dropped_bits = fraction_bits - format.mantissa_bits;
  switch (mode) {
    case MXScaleMode::Floor:
      return 0;
    case MXScaleMode::Ceil:
      return below_carry;
    case MXScaleMode::Even:
      return 1u << (dropped_bits - 1);
    case MXScaleMode::Rceil:
      return below_carry -
          (static_cast<uint32_t>(format.max_mantissa()) << dropped_bits);
  }
  return 0;
}

using MXSizes = c10::SmallVector<int64_t, 5>;

// A valid call: dim counted from the front, and the outputs it will have. Each
// is dense with dim innermost and the other dimensions in their order.
struct MXQuantizeCall {
  const MXFormat* format;
  int64_t dim;
  MXScaleMode mode;
  MXSizes output_sizes;
  MXSizes scale_sizes;
  ScalarType output_dtype;
};

struct MXDequantizeCall {
  const MXFormat* format;
  int64_t dim;
  MXSizes output_sizes;
  ScalarType output_dtype;
};

// Validation shared by every entry. The element format is a dtype in the base
// overloads and a string in the .format ones; exactly one of the two is given.
TORCH_API MXQuantizeCall describe_quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::optional<ScalarType> dtype,
    std::optional<std::string_view> elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type);

TORCH_API MXDequantizeCall describe_dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type);

TORCH_API std::tuple<Tensor, Tensor> quantize_mx_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode);

TORCH_API std::tuple<Tensor, Tensor> quantize_mx_format_cpu(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type);

TORCH_API Tensor dequantize_mx_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype);

TORCH_API Tensor dequantize_mx_format_cpu(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type);

// The kernels see bytes: payload and scale as uint8, dim counted from the
// front. A swizzled scale that is written has its padding zeroed before.
using quantize_mx_fn = void (*)(
    const Tensor& payload,
    const Tensor& scale,
    const Tensor& input,
    const MXFormat& format,
    MXScaleMode mode,
    int64_t dim,
    int64_t block_size,
    bool swizzled);

using dequantize_mx_fn = void (*)(
    const Tensor& output,
    const Tensor& payload,
    const Tensor& scale,
    const MXFormat& format,
    int64_t dim,
    int64_t block_size,
    bool swizzled);

DECLARE_DISPATCH(quantize_mx_fn, quantize_mx_stub)
DECLARE_DISPATCH(dequantize_mx_fn, dequantize_mx_stub)

} // namespace at::native
