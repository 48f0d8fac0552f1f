#pragma once

// What a valid call means. The rules that make it valid are in
// QuantizeMXValidation.h.

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/QuantizeMX.h>
#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

namespace at::native {

// The element format as the caller names it: a dtype in the base overloads, a
// string in the .format ones.
struct MXElement {
  /*implicit*/ MXElement(ScalarType dtype) : dtype(dtype) {}
  /*implicit*/ MXElement(std::string_view name) : name(name) {}

  std::optional<ScalarType> dtype;
  std::optional<std::string_view> name;
};

// A valid call, dim counted from the front.
struct MXQuantizeCall {
  const MXFormat* format;
  const MXScaleMode* mode;
  int64_t dim;
  int64_t block_size;
  bool swizzled;
  ScalarType output_dtype;
};

struct MXDequantizeCall {
  const MXFormat* format;
  int64_t dim;
  int64_t block_size;
  bool swizzled;
  ScalarType output_dtype;
};

// The row of a format or of a mode, or nullptr.
inline const MXFormat* find_mx_format(ScalarType dtype) {
  for (const auto& format : kMXFormats) {
    if (format.has_dtype() && format.dtype == dtype) {
      return &format;
    }
  }
  return nullptr;
}

inline const MXFormat* find_mx_format(std::string_view name) {
  for (const auto& format : kMXFormats) {
    if (format.name == name) {
      return &format;
    }
  }
  return nullptr;
}

inline const MXScaleMode* find_mx_mode(int64_t value) {
  for (const auto& mode : kMXScaleModes) {
    if (mode.value == value) {
      return &mode;
    }
  }
  return nullptr;
}

inline int64_t mx_dim_from_front(int64_t dim, int64_t rank) {
  return dim < 0 ? dim + rank : dim;
}

inline MXQuantizeCall quantize_mx_call(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    MXElement element,
    int64_t scale_calculation_mode,
    int64_t swizzle_type = kMXSwizzleNone) {
  const auto* format = element.name ? find_mx_format(*element.name)
                                    : find_mx_format(*element.dtype);
  return {
      format,
      find_mx_mode(scale_calculation_mode),
      mx_dim_from_front(dim, self.dim()),
      block_size,
      swizzle_type != kMXSwizzleNone,
      element.dtype.value_or(format->payload_dtype())};
}

inline MXDequantizeCall dequantize_mx_call(
    const Tensor& self,
    const Tensor& /*scale*/,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type = kMXSwizzleNone) {
  return {
      elem_format ? find_mx_format(*elem_format)
                  : find_mx_format(self.scalar_type()),
      mx_dim_from_front(dim, self.dim()),
      block_size,
      swizzle_type != kMXSwizzleNone,
      dtype};
}

// ---- sizes, numbers (int64_t) or symbolic ones (SymInt) --------------------

template <typename Int>
using MXSizes = c10::SmallVector<Int, 5>;

inline int64_t mx_ceil_div(int64_t numerator, int64_t denominator) {
  return numerator / denominator + (numerator % denominator != 0 ? 1 : 0);
}

inline c10::SymInt mx_ceil_div(
    const c10::SymInt& numerator,
    int64_t denominator) {
  if (const auto number = numerator.maybe_as_int()) {
    return mx_ceil_div(*number, denominator);
  }
  return (numerator + (denominator - 1)) / denominator;
}

// Sizes of the values, given those of the payload.
template <typename Int>
MXSizes<Int> mx_value_sizes(
    ArrayRef<Int> payload,
    int64_t dim,
    const MXFormat& format) {
  MXSizes<Int> sizes(payload.begin(), payload.end());
  sizes[dim] = sizes[dim] * format.codes_per_byte();
  return sizes;
}

// Sizes of the payload, given those of the values.
template <typename Int>
MXSizes<Int> mx_payload_sizes(
    ArrayRef<Int> values,
    int64_t dim,
    const MXFormat& format) {
  MXSizes<Int> sizes(values.begin(), values.end());
  sizes[dim] = sizes[dim] / format.codes_per_byte();
  return sizes;
}

template <typename Int>
MXSizes<Int> mx_scale_sizes(
    ArrayRef<Int> values,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  MXSizes<Int> sizes(values.begin(), values.end());
  sizes[dim] = sizes[dim] / block_size;
  if (swizzled) {
    auto& rows = sizes[sizes.size() - 2];
    auto& columns = sizes[sizes.size() - 1];
    rows = mx_ceil_div(rows, kMXTileRows) * kMXGroupRows;
    columns =
        mx_ceil_div(columns, kMXTileColumns) * (kMXTileGroups * kMXTileColumns);
  }
  return sizes;
}

} // namespace at::native
