#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/quantized/QuantizeMXCompositeLayout.h>
#include <ATen/native/quantized/QuantizeMXValidation.h>

#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>

#ifndef AT_PER_OPERATOR_HEADERS
#include <ATen/Functions.h>
#include <ATen/NativeFunctions.h>
#else
#include <ATen/ops/dequantize_mx.h>
#include <ATen/ops/dequantize_mx_native.h>
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
#include <utility>

// quantize_mx and dequantize_mx in other ATen operators: what answers on a
// device without a kernel of its own, and what compilers inline there. Sizes
// may be symbolic.

namespace at::native {

namespace {

constexpr int kFraction = 23; // of a float32
constexpr int kBias = 127; // of a float32, and of a scale byte
constexpr int kSubnormalExponent = 149; // a subnormal is its bits times 2^-149
constexpr int kNibble = 4; // bits of a code that shares its byte with another
constexpr int64_t kMinNormal = 1 << kFraction;
constexpr int64_t kExponentMask = 0x7F800000; // also Infinity; NaN is above
constexpr int64_t kMagnitudeMask = 0x7FFFFFFF;
constexpr int64_t kQuietNaN = 0x7FC00000;

// w was read from bits as if each number had a leading one. Numbers below c
// have none: their bits read as c + m where the value is 2m. 2w - c is right
// for them, and at least w for all others, so the minimum is right for all.
Tensor mend_subnormals(const Tensor& w, const Tensor& c) {
  return at::minimum(w, (w - c) + w);
}

// Reductions take 64 dimensions at most.
Tensor largest(const Tensor& blocks) {
  if (blocks.dim() <= 64) {
    return blocks.amax(-1);
  }
  const auto sizes = blocks.sym_sizes();
  return blocks.flatten(0, -2).amax(-1).unflatten_symint(
      0, sizes.slice(0, sizes.size() - 1));
}

// A tensor with the operators of a number, for MXScaleRule.
struct TensorBits {
  Tensor tensor;

  friend TensorBits operator+(const TensorBits& a, int b) {
    return {a.tensor + b};
  }
  friend TensorBits operator&(const TensorBits& a, int b) {
    return {a.tensor.bitwise_and(Scalar(b))};
  }
  friend TensorBits operator>>(const TensorBits& a, int bits) {
    return {a.tensor.bitwise_right_shift(Scalar(bits))};
  }
};

Tensor scale_bytes(const Tensor& magnitude, const MXQuantizeCall& call) {
  const auto& format = *call.format;
  auto amax = largest(magnitude);
  auto finite = amax.clamp_max(kExponentMask - 1);
  if (format.emax() == 0) {
    // Only here a subnormal's exponent matters. float32(its bits) has it.
    auto subnormal = amax.to(kFloat).view(kInt) -
        (static_cast<int64_t>(kSubnormalExponent) << kFraction);
    finite = at::where(amax < kMinNormal, subnormal, finite);
  }
  const MXScaleRule rule(*call.mode, format);
  return rule.biased_exponent<kFraction>(TensorBits{finite}, format)
      .tensor.clamp(0, 2 * kBias)
      .masked_fill(amax >= kExponentMask, kMXScaleNaN);
}

// Codes without their sign. w = |v| * 2^(bias - X) has, as a float32, the
// exponent field 127 + f where the code has f. A multiplication by a power of
// two is a subtraction on the bits.
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
  const auto ulp = w.view(kInt)
                       .bitwise_and(Scalar(kExponentMask))
                       .clamp_min(static_cast<int64_t>(kBias + 1) << kFraction);
  const auto sum =
      w.add(ulp.view(kFloat), static_cast<double>(1 << dropped_bits));
  const auto codes =
      sum.view(kInt) - ulp + ulp.bitwise_right_shift(Scalar(dropped_bits));
  const auto constant = (static_cast<int64_t>(dropped_bits) << kFraction) +
      (static_cast<int64_t>(kBias + 1) << format.mantissa_bits);
  return (codes - constant).clamp_max(format.max_code);
}

// Whether each value has its sign bit set, and the float32 bits of the rest. By
// the values' own bits: Inductor leaves out the rounding to 16 bits between two
// operations on 16-bit floats that it fuses, and passes the float32 result on.
std::pair<Tensor, Tensor> sign_and_magnitude(const Tensor& values) {
  if (values.scalar_type() == kFloat) {
    const auto bits = values.view(kInt);
    return {bits < 0, bits.bitwise_and(Scalar(kMagnitudeMask))};
  }
  const auto bits = values.view(kShort);
  const auto absolute = bits.bitwise_and(Scalar(0x7FFF));
  return {bits < 0, absolute.view(values.scalar_type()).to(kFloat).view(kInt)};
}

std::tuple<Tensor, Tensor> quantize_composite(
    const Tensor& self,
    const MXQuantizeCall& call) {
  const auto& format = *call.format;
  auto input = self.detach().resolve_neg();
  if (at::isTensorSubclassLike(input)) {
    // A trace of another input holds no resolve_neg, and a lazily negative one
    // has no bit views.
    input = input.clone();
  }
  const auto values = in_blocks(input.movedim(call.dim, -1), call.block_size);
  const auto [negative, magnitude] = sign_and_magnitude(values);
  const auto bytes = scale_bytes(magnitude, call);
  const auto block_scale = bytes.unsqueeze(-1);

  auto codes = encode(magnitude, block_scale, format);
  codes = format.twos_complement
      ? at::where(negative, codes.neg(), codes)
      : codes + negative.to(kInt) * format.sign_bit();
  codes = codes.masked_fill(block_scale == kMXScaleNaN, format.nan_code);
  auto payload = codes.to(format.twos_complement ? kChar : kByte).flatten(-2);
  if (format.codes_per_byte() == 2) {
    const auto high =
        every_second(payload, 1).bitwise_left_shift(Scalar(kNibble));
    payload = every_second(payload, 0).bitwise_or(high);
  }
  const auto scale = bytes.to(kByte);
  return {
      in_layout(payload, call.dim).view(call.output_dtype),
      in_layout(call.swizzled ? swizzle(scale) : scale, call.dim)
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
  const auto unit = (scale.clamp_max(format.bias() + format.mantissa_bits) +
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
  bits =
      at::where(negative, bits.bitwise_or(Scalar(-kMagnitudeMask - 1)), bits);
  if (format.nan_code != 0) {
    const int last = std::max(format.inf_code, format.max_code);
    bits = bits.masked_fill(magnitude > last, kQuietNaN);
  }
  return bits;
}

// The numbers as integers of their width.
Tensor round_to(const Tensor& bits, ScalarType dtype) {
  if (dtype == kFloat) {
    return bits;
  }
  if (dtype == kHalf) {
    return bits.view(kFloat).to(kHalf).view(kShort);
  }
  // In integers, because hardware conversions flush subnormals.
  const auto tie = bits.bitwise_right_shift(Scalar(16)).bitwise_and(Scalar(1));
  return (bits + 0x7FFF + tie).bitwise_right_shift(Scalar(16)).to(kShort);
}

int quiet_nan(ScalarType dtype) {
  return dtype == kFloat ? kQuietNaN : dtype == kHalf ? 0x7E00 : 0x7FC0;
}

Tensor dequantize_composite(
    const Tensor& self,
    const Tensor& scale,
    const MXDequantizeCall& call) {
  const auto& format = *call.format;
  auto payload = self.detach()
                     .view(format.twos_complement ? kChar : kByte)
                     .movedim(call.dim, -1)
                     .to(kInt);
  if (format.codes_per_byte() == 2) {
    const auto low = payload.bitwise_and(Scalar((1 << kNibble) - 1));
    const auto high = payload.bitwise_right_shift(Scalar(kNibble));
    payload = at::stack({low, high}, -1).flatten(-2);
  }
  auto bytes = scale.detach().view(kByte).movedim(call.dim, -1);
  if (call.swizzled) {
    bytes = unswizzle(
        bytes, payload.sym_size(-2), payload.sym_size(-1) / call.block_size);
  }
  const auto dtype = call.output_dtype;
  const auto block_scale = bytes.to(kInt).unsqueeze(-1);
  const auto bits =
      decode(in_blocks(payload, call.block_size), block_scale, format);
  // On the rounded bits: without an operation on them, Inductor leaves out the
  // rounding to float16 and passes the float32 number on to what it fuses with
  // this.
  const auto rounded =
      round_to(bits, dtype)
          .masked_fill(block_scale == kMXScaleNaN, quiet_nan(dtype));
  return in_layout(rounded.view(dtype).flatten(-2), call.dim);
}

// Whether a kernel of the base overload can answer a call of .format. It
// validates the call, and the same faults have the same texts there.
bool base_answers(
    const char* op,
    const Tensor& self,
    const MXFormat* format,
    int64_t swizzle_type) {
  if (format == nullptr || !format->has_dtype() ||
      swizzle_type != kMXSwizzleNone || !self.defined()) {
    return false;
  }
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
  return quantize_composite(
      self,
      describe_quantize_mx(
          self, dim, block_size, dtype, scale_calculation_mode));
}

std::tuple<Tensor, Tensor> quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  const auto* format = find_mx_format(elem_format);
  if (!base_answers("aten::quantize_mx", self, format, swizzle_type)) {
    return quantize_composite(
        self,
        describe_quantize_mx(
            self,
            dim,
            block_size,
            elem_format,
            scale_calculation_mode,
            swizzle_type));
  }
  auto [output, scale] = at::quantize_mx(
      self, dim, block_size, format->dtype, scale_calculation_mode);
  const auto dtype = format->payload_dtype();
  return {
      output.scalar_type() == dtype ? output : output.view(dtype),
      std::move(scale)};
}

Tensor dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  return dequantize_composite(
      self,
      scale,
      describe_dequantize_mx(
          self, scale, dim, block_size, std::nullopt, dtype));
}

Tensor dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  const auto* format = find_mx_format(elem_format);
  if (!base_answers("aten::dequantize_mx", self, format, swizzle_type)) {
    return dequantize_composite(
        self,
        scale,
        describe_dequantize_mx(
            self, scale, dim, block_size, elem_format, dtype, swizzle_type));
  }
  if (self.scalar_type() == format->dtype) {
    return at::dequantize_mx(self, scale, dim, block_size, dtype);
  }
  // The payload is raw bytes or a fault. Only a valid one can be viewed.
  check_dequantize_mx(
      self, scale, dim, block_size, elem_format, dtype, swizzle_type);
  return at::dequantize_mx(
      self.view(format->dtype), scale, dim, block_size, dtype);
}

} // namespace at::native
