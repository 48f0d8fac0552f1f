// quantize_mx and dequantize_mx for one device, with nothing of aten_mx to include or to link.
//
// A kernel must match the base overload's schema argument for argument. It sees checked arguments
// only, so nothing is checked here, and `.format` arrives here too wherever the format has a dtype.
// The loops are plain: they show the arithmetic, all of it on integers, and not how to be fast.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifndef MX_DISPATCH_KEY
#define MX_DISPATCH_KEY PrivateUse1
#endif

namespace {

using at::Tensor;

std::atomic<std::int64_t> quantize_calls{0};
std::atomic<std::int64_t> dequantize_calls{0};

// ---- Number formats -----------------------------------------------------------------------------

// How a code (the stored integer) means a number. Inputs, elements and results are all of this one
// kind. With the sign apart, codes are ordered as the magnitudes that they stand for.
struct Format {
  int bits;
  int exponent_bits;
  int mantissa_bits;
  std::uint32_t max_code;  // largest finite magnitude
  std::uint32_t inf_code;  // 0: no infinity
  std::uint32_t nan_code;  // the NaN to write; 0: no NaN
  bool twos_complement = false;

  // One exponent bit has bias 1, which makes the codes of INT8 multiples of 1/64.
  int bias() const { return std::max(1, (1 << (exponent_bits - 1)) - 1); }
  int emax() const { return int(max_code >> mantissa_bits) - bias(); }
  bool is_inf(std::uint32_t code) const { return inf_code != 0 && code == inf_code; }
  bool is_nan(std::uint32_t code) const {
    return nan_code != 0 && code > std::max(max_code, inf_code);
  }
};

Format format_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return {32, 8, 23, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
    case at::kBFloat16:
      return {16, 8, 7, 0x7F7F, 0x7F80, 0x7FC0};
    case at::kHalf:
      return {16, 5, 10, 0x7BFF, 0x7C00, 0x7E00};
    case at::kFloat8_e4m3fn:
      return {8, 4, 3, 0x7E, 0, 0x7F};
    case at::kFloat8_e5m2:
      return {8, 5, 2, 0x7B, 0x7C, 0x7F};
    case at::kFloat4_e2m1fn_x2:
      return {4, 2, 1, 0x7, 0, 0};
    case at::kChar:
      return {8, 1, 6, 0x7F, 0, 0, true};
    default:
      TORCH_INTERNAL_ASSERT(false, "not a dtype of quantize_mx: ", dtype);
  }
}

// A finite magnitude: significand * 2^(exponent - 30), significand 0 or in [2^30, 2^31).
struct Number {
  int exponent;
  std::uint32_t significand;
};
constexpr int kFraction = 30;
constexpr std::uint32_t kOne = 1u << kFraction;

Number decode(std::uint32_t code, const Format& format) {
  const int field = int(code >> format.mantissa_bits);
  std::uint32_t significand = code & ((1u << format.mantissa_bits) - 1);
  if (field > 0) {
    significand |= 1u << format.mantissa_bits;
  } else if (significand == 0) {
    return {0, 0};
  }
  const int shift = __builtin_clz(significand) - (31 - kFraction);
  const int exponent = std::max(field, 1) - format.bias() - format.mantissa_bits;
  return {exponent + kFraction - shift, significand << shift};
}

// The code nearest to the number, ties to even, and no larger than `limit`.
std::uint32_t encode(Number number, const Format& format, std::uint32_t limit) {
  if (number.significand == 0) {
    return 0;
  }
  // Below the smallest normal number the spacing of codes stays what it is there.
  const int exponent = std::max(number.exponent, 1 - format.bias());
  const int shift = exponent - number.exponent + kFraction - format.mantissa_bits;
  if (shift > 31) {
    return 0;  // below half of the smallest code
  }
  const std::uint32_t half = 1u << (shift - 1);
  std::uint32_t rounded = number.significand >> shift;
  const std::uint32_t rest = number.significand & (2 * half - 1);
  rounded += rest > half || (rest == half && (rounded & 1));
  // Added and not or-ed: rounding up to the next power of two carries into the exponent.
  const std::uint32_t below = std::uint32_t(exponent + format.bias() - 1) << format.mantissa_bits;
  return std::min(below + rounded, limit);
}

// ---- The shared scale ---------------------------------------------------------------------------

constexpr int kScaleBias = 127;
constexpr std::uint8_t kScaleNaN = 0xFF;

// What the mode adds to floor(log2(amax)) - emax.
int rounding_addend(std::uint32_t significand, const Format& format, std::int64_t mode) {
  const int m = format.mantissa_bits;
  switch (mode) {
    case 1:  // CEIL
      return significand > kOne;
    case 2:  // EVEN: round half up to the format's mantissa; the carry, if any, is the addend
      return int((significand + (kOne >> (m + 1))) >> (kFraction + 1));
    case 3: {  // RCEIL: up if the significand is above that of the largest element
      const std::uint32_t of_max = (1u << m) | (format.max_code & ((1u << m) - 1));
      return significand > of_max << (kFraction - m);
    }
    default:
      TORCH_INTERNAL_ASSERT(mode == 0, "not a scale mode of this backend: ", mode);
      return 0;  // FLOOR
  }
}

std::uint8_t scale_of(Number amax, const Format& format, std::int64_t mode) {
  if (amax.significand == 0) {
    return 0;
  }
  const int exponent =
      amax.exponent - format.emax() + rounding_addend(amax.significand, format, mode);
  return std::uint8_t(std::clamp(exponent, -127, 127) + kScaleBias);
}

// ---- Memory -------------------------------------------------------------------------------------

// A strided tensor as rows along its last dimension.
struct Rows {
  explicit Rows(const Tensor& tensor)
      : sizes(tensor.sizes().vec()), strides(tensor.strides().vec()),
        length(sizes.back()), step(strides.back()) {
    for (std::size_t d = 0; d + 1 < sizes.size(); ++d) {
      count *= sizes[d];
    }
  }
  // Where row number `row` starts, in elements.
  std::int64_t start(std::int64_t row) const {
    std::int64_t offset = 0;
    for (std::size_t d = sizes.size() - 1; d-- > 0;) {
      offset += row % sizes[d] * strides[d];
      row /= sizes[d];
    }
    return offset;
  }
  std::vector<std::int64_t> sizes, strides;
  std::int64_t length, step, count = 1;
};

// Codes one by one; two of four bits share a byte, the even one in the low half.
std::uint32_t load(const char* data, std::int64_t start, std::int64_t step, std::int64_t index,
                   int bits) {
  if (bits == 4) {
    const auto byte = std::uint8_t(data[start + index / 2 * step]);
    return index % 2 ? byte >> 4 : byte & 0xF;
  }
  std::uint32_t code = 0;  // the host is little-endian
  std::memcpy(&code, data + (start + index * step) * (bits / 8), bits / 8);
  return code;
}

void store(char* data, std::int64_t index, std::uint32_t code, int bits) {
  if (bits == 4) {
    char& byte = data[index / 2];
    byte = char(index % 2 ? (byte & 0xF) | code << 4 : code);
  } else {
    std::memcpy(data + index * (bits / 8), &code, bits / 8);
  }
}

// The layout rule: dense, with the blocked dimension innermost. `moved` has it last.
Tensor empty_rows(std::vector<std::int64_t> moved, const Tensor& like, at::ScalarType dtype) {
  return at::empty(moved, like.options().dtype(dtype));
}

// ---- The kernels --------------------------------------------------------------------------------

std::tuple<Tensor, Tensor> quantize_mx(
    const Tensor& self, std::int64_t dim, std::int64_t block_size, at::ScalarType dtype,
    std::int64_t scale_calculation_mode) {
  ++quantize_calls;
  const Format in = format_of(self.scalar_type());
  const Format out = format_of(dtype);
  const std::uint32_t in_sign = 1u << (in.bits - 1), out_sign = 1u << (out.bits - 1);

  const Tensor moved = self.movedim(dim, -1);
  const Rows rows(moved);
  auto sizes = rows.sizes;
  sizes.back() = rows.length * out.bits / 8;
  const Tensor output = empty_rows(sizes, self, dtype);
  sizes.back() = rows.length / block_size;
  const Tensor scale = empty_rows(sizes, self, at::kFloat8_e8m0fnu);

  const auto* read = static_cast<const char*>(moved.const_data_ptr());
  auto* codes = static_cast<char*>(output.mutable_data_ptr());
  auto* scales = static_cast<std::uint8_t*>(scale.mutable_data_ptr());
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t start = rows.start(row);
    for (std::int64_t first = 0; first < rows.length; first += block_size) {
      std::uint32_t amax = 0;
      for (std::int64_t i = first; i < first + block_size; ++i) {
        amax = std::max(amax, load(read, start, rows.step, i, in.bits) & (in_sign - 1));
      }
      const bool finite = amax < in.inf_code;
      const std::uint8_t shared =
          finite ? scale_of(decode(amax, in), out, scale_calculation_mode) : kScaleNaN;
      *scales++ = shared;
      for (std::int64_t i = first; i < first + block_size; ++i) {
        std::uint32_t code = out.nan_code;  // 0 where the scale alone carries the NaN
        if (finite) {
          const std::uint32_t bits = load(read, start, rows.step, i, in.bits);
          Number number = decode(bits & (in_sign - 1), in);
          number.exponent -= shared - kScaleBias;
          code = encode(number, out, out.max_code);
          if (bits & in_sign) {
            code = out.twos_complement ? 0 - code : code | out_sign;
          }
        }
        store(codes, row * rows.length + i, code, out.bits);
      }
    }
  }
  return {output.movedim(-1, dim), scale.movedim(-1, dim)};
}

Tensor dequantize_mx(
    const Tensor& self, const Tensor& scale, std::int64_t dim, std::int64_t block_size,
    at::ScalarType dtype) {
  ++dequantize_calls;
  const Format in = format_of(self.scalar_type());
  const Format out = format_of(dtype);
  const std::uint32_t in_sign = 1u << (in.bits - 1), out_sign = 1u << (out.bits - 1);

  const Tensor payload = self.movedim(dim, -1), scales = scale.movedim(dim, -1);
  const Rows rows(payload), scale_rows(scales);
  auto sizes = rows.sizes;
  const std::int64_t length = sizes.back() *= 8 / in.bits;
  const Tensor output = empty_rows(sizes, self, dtype);

  const auto* codes = static_cast<const char*>(payload.const_data_ptr());
  const auto* shared = static_cast<const char*>(scales.const_data_ptr());
  auto* written = static_cast<char*>(output.mutable_data_ptr());
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const std::int64_t start = rows.start(row), scale_start = scale_rows.start(row);
    for (std::int64_t i = 0; i < length; ++i) {
      const std::uint32_t byte = load(shared, scale_start, scale_rows.step, i / block_size, 8);
      std::uint32_t code = load(codes, start, rows.step, i, in.bits);
      const bool negative = code & in_sign;
      code = in.twos_complement && negative ? (0 - code) & 0xFF : code & (in_sign - 1);
      std::uint32_t result;
      if (byte == kScaleNaN || in.is_nan(code)) {
        result = out.nan_code;  // without the sign
      } else {
        if (in.is_inf(code)) {
          result = out.inf_code;
        } else {
          Number number = decode(code, in);
          number.exponent += int(byte) - kScaleBias;
          result = encode(number, out, out.inf_code);
        }
        result |= negative ? out_sign : 0;
      }
      store(written, row * length + i, result, out.bits);
    }
  }
  return output.movedim(-1, dim);
}

// Loaded before the package that defines these ops, the registration waits for it.
TORCH_LIBRARY_IMPL(aten_mx, MX_DISPATCH_KEY, m) {
  m.impl("quantize_mx", &quantize_mx);
  m.impl("dequantize_mx", &dequantize_mx);
}

}  // namespace

// How often each kernel ran, for tests: a kernel that is bypassed gives the same bytes.
extern "C" std::int64_t quantize_mx_calls() { return quantize_calls; }
extern "C" std::int64_t dequantize_mx_calls() { return dequantize_calls; }
