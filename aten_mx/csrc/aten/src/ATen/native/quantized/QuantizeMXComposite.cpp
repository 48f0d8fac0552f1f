// quantize_mx and dequantize_mx in other ATen operators: what answers on a
// device without a kernel of its own and what compilers inline there, and the
// Meta kernels. Sizes may be symbolic in both.

#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/quantized/QuantizeMX.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/irange.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/dequantize_mx.h>
#include <ATen/ops/dequantize_mx_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/quantize_mx.h>
#include <ATen/ops/quantize_mx_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#endif

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

namespace at::native {

namespace {

constexpr int kFraction = 23; // of a float32
constexpr int kBias = 127; // of a float32, and of a scale byte
constexpr int kSubnormalExponent = 149; // a subnormal is its bits times 2^-149
constexpr int64_t kMinNormal = 1 << kFraction;
constexpr int64_t kExponentMask = 0x7F800000; // also Infinity; NaN is above
constexpr int64_t kMagnitudeMask = 0x7FFFFFFF;
constexpr int64_t kQuietNaN = 0x7FC00000;

using SymSizes = std::vector<c10::SymInt>;

bool has_symbolic_sizes(const Tensor& tensor) {
  return tensor.defined() && !tensor.is_nested() &&
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// One block long at dim and one elsewhere. Made without the dispatcher, or a
// tracer would record it.
Tensor one_block(const Tensor& like, int64_t dim, int64_t size) {
  MXSizes sizes(like.dim(), 1);
  if (dim >= -like.dim() && dim < like.dim()) {
    sizes[dim < 0 ? dim + like.dim() : dim] = std::max<int64_t>(size, 1);
  }
  return at::detail::empty_meta(sizes, like.scalar_type());
}

void check_multiple(const char* op, const c10::SymInt& size, int64_t block) {
  TORCH_CHECK_VALUE(
      (size % block).sym_eq(0).expect_true(__FILE__, __LINE__),
      op,
      ": size ",
      size,
      " must be a multiple of block_size ",
      block);
}

// The rules that are about sizes are the only ones that a symbolic size can
// break. All others are checked on a tensor of one block in its place.
MXQuantizeCall describe_quantize(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::optional<ScalarType> dtype,
    std::optional<std::string_view> elem_format,
    int64_t mode,
    int64_t swizzle_type) {
  const bool symbolic = has_symbolic_sizes(self);
  auto call = describe_quantize_mx(
      symbolic ? one_block(self, dim, block_size) : self,
      dim,
      block_size,
      dtype,
      elem_format,
      mode,
      swizzle_type);
  if (symbolic) {
    check_multiple("quantize_mx", self.sym_size(call.dim), block_size);
  }
  return call;
}

SymSizes sym_scale_sizes(
    SymSizes values,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  values[dim] = values[dim] / block_size;
  if (swizzled) {
    auto& rows = values[values.size() - 2];
    auto& columns = values[values.size() - 1];
    rows = (rows + kMXTileRows - 1) / kMXTileRows * 32;
    columns = (columns + kMXTileColumns - 1) / kMXTileColumns * 16;
  }
  return values;
}

MXDequantizeCall describe_dequantize(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  constexpr auto op = "dequantize_mx";
  if (!has_symbolic_sizes(self) && !has_symbolic_sizes(scale)) {
    return describe_dequantize_mx(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type);
  }
  const bool packed = elem_format ? *elem_format == "fp4_e2m1"
                                  : self.scalar_type() == kFloat4_e2m1fn_x2;
  const int64_t codes_per_byte = packed ? 2 : 1;
  auto one_scale = one_block(scale, 0, 1);
  if (swizzle_type != kMXSwizzleNone && scale.dim() >= 2) {
    MXSizes sizes(scale.dim(), 1);
    sizes[scale.dim() - 2] = 32;
    sizes[scale.dim() - 1] = 16;
    one_scale = at::detail::empty_meta(sizes, scale.scalar_type());
  }
  auto call = describe_dequantize_mx(
      one_block(self, dim, block_size / codes_per_byte),
      one_scale,
      dim,
      block_size,
      elem_format,
      dtype,
      swizzle_type);
  auto sizes = self.sym_sizes().vec();
  sizes[call.dim] = sizes[call.dim] * codes_per_byte;
  check_multiple(op, sizes[call.dim], block_size);
  const auto expected = sym_scale_sizes(
      sizes, call.dim, block_size, swizzle_type != kMXSwizzleNone);
  for (const auto i : c10::irange(scale.dim())) {
    TORCH_CHECK_VALUE(
        scale.sym_size(i).sym_eq(expected[i]).expect_true(__FILE__, __LINE__),
        op,
        ": scale must have shape ",
        c10::SymIntArrayRef(expected),
        " for values of shape ",
        c10::SymIntArrayRef(sizes),
        " and block_size ",
        block_size,
        ", got ",
        scale.sym_sizes());
  }
  TORCH_CHECK(
      scale.device() == self.device(),
      op,
      ": self and scale must be on one device, got ",
      self.device(),
      " and ",
      scale.device());
  return call;
}

// --- Meta ------------------------------------------------------------------

Tensor empty_output(
    const Tensor& self,
    SymSizes sizes,
    int64_t dim,
    ScalarType dtype) {
  std::rotate(sizes.begin() + dim, sizes.begin() + dim + 1, sizes.end());
  return at::empty_symint(sizes, self.options().dtype(dtype)).movedim(-1, dim);
}

std::tuple<Tensor, Tensor> quantize_meta(
    const Tensor& self,
    const MXQuantizeCall& call,
    int64_t block_size,
    bool swizzled) {
  auto sizes = self.sym_sizes().vec();
  auto scale_sizes = sym_scale_sizes(sizes, call.dim, block_size, swizzled);
  sizes[call.dim] = sizes[call.dim] / call.format->codes_per_byte();
  return {
      empty_output(self, std::move(sizes), call.dim, call.output_dtype),
      empty_output(self, std::move(scale_sizes), call.dim, kFloat8_e8m0fnu)};
}

Tensor dequantize_meta(const Tensor& self, const MXDequantizeCall& call) {
  auto sizes = self.sym_sizes().vec();
  sizes[call.dim] = sizes[call.dim] * call.format->codes_per_byte();
  return empty_output(self, std::move(sizes), call.dim, call.output_dtype);
}

// --- the composite ---------------------------------------------------------

// clone and not contiguous(), which keeps the strides of sizes 0 and 1.
Tensor in_layout(const Tensor& moved, int64_t dim) {
  return moved.clone(MemoryFormat::Contiguous).movedim(-1, dim);
}

// Splits the last dimension into blocks.
Tensor in_blocks(const Tensor& moved, int64_t block_size) {
  const auto blocks = moved.sym_size(-1) / block_size;
  return moved.unflatten_symint(-1, SymSizes{blocks, block_size});
}

Tensor every_second(const Tensor& tensor, int64_t start) {
  return tensor.slice_symint(-1, start, std::nullopt, 2);
}

// A number w that was read from bits as if its leading one were there, where
// numbers below c have none: those read as c + m where 2m is meant. 2w - c is
// right for them, and not below w for all others.
Tensor mend_subnormals(const Tensor& w, const Tensor& c) {
  return at::minimum(w, (w - c) + w);
}

Tensor scale_bytes(const Tensor& magnitude, const MXQuantizeCall& call) {
  const auto& format = *call.format;
  auto amax = magnitude.amax(-1);
  auto finite = amax.clamp_max(kExponentMask - 1);
  if (format.emax() == 0) {
    // The only case in which the exponent of a subnormal matters. A float32 of
    // its bits, an integer below 2^24, normalizes it.
    auto subnormal = amax.to(kFloat).view(kInt) -
        (static_cast<int64_t>(kSubnormalExponent) << kFraction);
    finite = at::where(amax < kMinNormal, subnormal, finite);
  }
  const auto addend = mx_rounding_addend(format, call.mode, kFraction);
  auto exponent = (finite + static_cast<int64_t>(addend))
                      .bitwise_right_shift(Scalar(kFraction));
  auto byte = (exponent - format.emax()).clamp(0, 2 * kBias);
  return byte.masked_fill(amax >= kExponentMask, kMXScaleNaN);
}

// Codes without their sign. w = |v| * 2^(bias - X) has, as a float32, the
// exponent field 127 + f where the code has f. To multiply by a power of two
// is to subtract on the bits.
Tensor encode(
    const Tensor& magnitude,
    const Tensor& scale,
    const MXFormat& format) {
  const int dropped_bits = kFraction - format.mantissa_bits;
  const auto offset =
      (scale - (kBias + format.bias())).bitwise_left_shift(Scalar(kFraction));
  // All below 2^-mantissa_bits rounds to zero; the bound keeps w normal, which
  // flush-to-zero leaves alone.
  const auto lowest = static_cast<int64_t>(kBias - format.mantissa_bits - 3)
      << kFraction;
  // Not kMinNormal - offset: that operator works in place, and compilers inline
  // this after they have made the graph functional.
  const auto min_normal =
      (offset.neg() + kMinNormal).clamp_min(lowest).view(kFloat);
  const auto w = mend_subnormals(
      (magnitude - offset).clamp_min(lowest).view(kFloat), min_normal);
  // One addition rounds to even: beside 2^dropped_bits times w's own power of
  // two (that of the smallest normal code at least) only mantissa_bits remain.
  const auto ulp = w.view(kInt).bitwise_and(Scalar(kExponentMask))
                       .clamp_min(static_cast<int64_t>(kBias + 1) << kFraction);
  const auto sum =
      w.add(ulp.view(kFloat), static_cast<double>(1 << dropped_bits));
  const auto codes = sum.view(kInt) - ulp +
      ulp.bitwise_right_shift(Scalar(dropped_bits));
  const auto constant = (static_cast<int64_t>(dropped_bits) << kFraction) +
      (static_cast<int64_t>(kBias + 1) << format.mantissa_bits);
  return (codes - constant).clamp_max(format.max_code);
}

// Rows and columns in tiles: r / 128, c / 4, r % 32, r / 32 % 4, c % 4.
Tensor swizzle(const Tensor& scale) {
  const auto rows = scale.sym_size(-2), columns = scale.sym_size(-1);
  const auto row_tiles = (rows + kMXTileRows - 1) / kMXTileRows;
  const auto column_tiles = (columns + kMXTileColumns - 1) / kMXTileColumns;
  const SymSizes padding{
      0,
      column_tiles * kMXTileColumns - columns,
      0,
      row_tiles * kMXTileRows - rows};
  auto sizes = scale.sym_sizes().vec();
  sizes[sizes.size() - 2] = row_tiles * 32;
  sizes[sizes.size() - 1] = column_tiles * 16;
  return at::constant_pad_nd_symint(scale, padding)
      .unflatten_symint(-1, SymSizes{column_tiles, 4})
      .unflatten_symint(-3, SymSizes{row_tiles, 4, 32})
      .movedim({-4, -3, -2}, {-2, -3, -4})
      .reshape_symint(sizes);
}

Tensor unswizzle(
    const Tensor& swizzled,
    const c10::SymInt& rows,
    const c10::SymInt& columns) {
  const auto row_tiles = swizzled.sym_size(-2) / 32;
  const auto column_tiles = swizzled.sym_size(-1) / 16;
  auto sizes = swizzled.sym_sizes().vec();
  sizes.resize(sizes.size() - 2);
  auto padded = sizes;
  sizes.insert(sizes.end(), {row_tiles, column_tiles, 32, 4, 4});
  padded.insert(padded.end(), {row_tiles * 128, column_tiles * 4});
  return swizzled.reshape_symint(sizes)
      .movedim({-2, -3, -4}, {-4, -3, -2})
      .reshape_symint(padded)
      .slice_symint(-2, 0, rows)
      .slice_symint(-1, 0, columns);
}

std::tuple<Tensor, Tensor> quantize_composite(
    const Tensor& self,
    const MXQuantizeCall& call,
    int64_t block_size,
    bool swizzled) {
  const auto& format = *call.format;
  const auto values = in_blocks(
      self.detach().resolve_neg().movedim(call.dim, -1), block_size);
  const auto bits = values.to(kFloat).view(kInt);
  const auto negative = bits < 0;
  const auto magnitude = bits.bitwise_and(Scalar(kMagnitudeMask));
  const auto bytes = scale_bytes(magnitude, call);
  const auto block_scale = bytes.unsqueeze(-1);

  auto codes = encode(magnitude, block_scale, format);
  codes = format.twos_complement
      ? at::where(negative, codes.neg(), codes)
      : codes + negative.to(kInt) * format.sign_bit();
  codes = codes.masked_fill(block_scale == kMXScaleNaN, format.nan_code);
  auto payload =
      codes.to(format.twos_complement ? kChar : kByte).flatten(-2);
  if (format.codes_per_byte() == 2) {
    const auto high =
        every_second(payload, 1).bitwise_left_shift(Scalar(format.bits));
    payload = every_second(payload, 0).bitwise_or(high);
  }
  const auto scale = bytes.to(kByte);
  return {
      in_layout(payload, call.dim).view(call.output_dtype),
      in_layout(swizzled ? swizzle(scale) : scale, call.dim)
          .view(kFloat8_e8m0fnu)};
}

// Float32 bits of value(codes) * 2^(scale - 127).
Tensor decode(
    const Tensor& raw_codes,
    const Tensor& scale,
    const MXFormat& format) {
  Tensor negative, magnitude;
  if (format.twos_complement) {
    negative = raw_codes < 0;
    magnitude = raw_codes.abs();
  } else {
    const auto codes = raw_codes.bitwise_and(Scalar(2 * format.sign_bit() - 1));
    negative = codes >= format.sign_bit();
    magnitude = codes.bitwise_and(Scalar(format.sign_bit() - 1));
  }
  // The value, normal in float32.
  const auto read_bits =
      magnitude.bitwise_left_shift(Scalar(kFraction - format.mantissa_bits)) +
      (static_cast<int64_t>(kBias - format.bias()) << kFraction);
  const auto read = read_bits.view(kFloat);
  const auto w =
      at::minimum(read, (read - std::ldexp(1.0, 1 - format.bias())) + read);
  // Where the product is subnormal or zero its bits are the product in units
  // of 2^-149, an integer. Above the capped scale only zero is that small.
  const auto unit =
      (scale.clamp_max(format.bias() + format.mantissa_bits) +
       kSubnormalExponent)
          .bitwise_left_shift(Scalar(kFraction))
          .view(kFloat);
  const auto small =
      (w * unit).clamp_max(static_cast<double>(kMinNormal)).to(kInt);
  // Where it is normal or overflows: add exponents, capped at Infinity.
  const auto exponent = (scale - kBias).bitwise_left_shift(Scalar(kFraction));
  const auto normal =
      at::minimum(w.view(kInt), exponent.clamp_min(0).neg() + kExponentMask) +
      exponent;
  auto bits = at::where(small < kMinNormal, small, normal);
  if (format.inf_code != 0) {
    bits = bits.masked_fill(magnitude == format.inf_code, kExponentMask);
  }
  bits = at::where(negative, bits.bitwise_or(Scalar(-kMagnitudeMask - 1)), bits);
  if (format.nan_code != 0) {
    const int last = std::max(format.inf_code, format.max_code);
    bits = bits.masked_fill(magnitude > last, kQuietNaN);
  }
  return bits.masked_fill(scale == kMXScaleNaN, kQuietNaN);
}

Tensor round_to(const Tensor& bits, ScalarType dtype) {
  if (dtype != kBFloat16) {
    return bits.view(kFloat).to(dtype);
  }
  // In integers, because hardware conversions flush subnormals.
  const auto tie = bits.bitwise_right_shift(Scalar(16)).bitwise_and(Scalar(1));
  return (bits + 0x7FFF + tie)
      .bitwise_right_shift(Scalar(16))
      .to(kShort)
      .view(kBFloat16);
}

Tensor dequantize_composite(
    const Tensor& self,
    const Tensor& scale,
    const MXDequantizeCall& call,
    int64_t block_size,
    bool swizzled) {
  const auto& format = *call.format;
  auto payload = self.detach()
                     .view(format.twos_complement ? kChar : kByte)
                     .movedim(call.dim, -1)
                     .to(kInt);
  if (format.codes_per_byte() == 2) {
    const auto low = payload.bitwise_and(Scalar((1 << format.bits) - 1));
    const auto high = payload.bitwise_right_shift(Scalar(format.bits));
    payload = at::stack({low, high}, -1).flatten(-2);
  }
  auto bytes = scale.detach().view(kByte).movedim(call.dim, -1);
  if (swizzled) {
    bytes = unswizzle(
        bytes, payload.sym_size(-2), payload.sym_size(-1) / block_size);
  }
  const auto bits = decode(
      in_blocks(payload, block_size), bytes.to(kInt).unsqueeze(-1), format);
  return in_layout(round_to(bits, call.output_dtype).flatten(-2), call.dim);
}

// A backend that implements a base overload alone is reached by .format too.
bool has_kernel(const char* op, const Tensor& self) {
  const auto key =
      c10::computeDispatchKey(std::nullopt, std::nullopt, self.device());
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(op, "")
      .hasKernelForDispatchKey(key);
}

} // namespace

std::tuple<Tensor, Tensor> quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode) {
  const auto call = describe_quantize(
      self,
      dim,
      block_size,
      dtype,
      std::nullopt,
      scale_calculation_mode,
      kMXSwizzleNone);
  return quantize_composite(self, call, block_size, false);
}

std::tuple<Tensor, Tensor> quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  const auto call = describe_quantize(
      self,
      dim,
      block_size,
      std::nullopt,
      elem_format,
      scale_calculation_mode,
      swizzle_type);
  const auto dtype = call.format->dtype;
  const bool swizzled = swizzle_type != kMXSwizzleNone;
  if (dtype == ScalarType::Undefined || swizzled ||
      !has_kernel("aten::quantize_mx", self)) {
    return quantize_composite(self, call, block_size, swizzled);
  }
  auto [output, scale] =
      at::quantize_mx(self, dim, block_size, dtype, scale_calculation_mode);
  return {
      dtype == call.output_dtype ? output : output.view(call.output_dtype),
      std::move(scale)};
}

Tensor dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  const auto call = describe_dequantize(
      self, scale, dim, block_size, std::nullopt, dtype, kMXSwizzleNone);
  return dequantize_composite(self, scale, call, block_size, false);
}

Tensor dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  const auto call = describe_dequantize(
      self, scale, dim, block_size, elem_format, dtype, swizzle_type);
  const auto payload_dtype = call.format->dtype;
  const bool swizzled = swizzle_type != kMXSwizzleNone;
  if (payload_dtype == ScalarType::Undefined || swizzled ||
      !has_kernel("aten::dequantize_mx", self)) {
    return dequantize_composite(self, scale, call, block_size, swizzled);
  }
  const auto payload =
      self.scalar_type() == payload_dtype ? self : self.view(payload_dtype);
  return at::dequantize_mx(payload, scale, dim, block_size, dtype);
}

std::tuple<Tensor, Tensor> quantize_mx_meta(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t scale_calculation_mode) {
  const auto call = describe_quantize(
      self,
      dim,
      block_size,
      dtype,
      std::nullopt,
      scale_calculation_mode,
      kMXSwizzleNone);
  return quantize_meta(self, call, block_size, false);
}

std::tuple<Tensor, Tensor> quantize_mx_format_meta(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  const auto call = describe_quantize(
      self,
      dim,
      block_size,
      std::nullopt,
      elem_format,
      scale_calculation_mode,
      swizzle_type);
  return quantize_meta(self, call, block_size, swizzle_type != kMXSwizzleNone);
}

Tensor dequantize_mx_meta(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  return dequantize_meta(
      self,
      describe_dequantize(
          self, scale, dim, block_size, std::nullopt, dtype, kMXSwizzleNone));
}

Tensor dequantize_mx_format_meta(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  return dequantize_meta(
      self,
      describe_dequantize(
          self, scale, dim, block_size, elem_format, dtype, swizzle_type));
}

} // namespace at::native
