#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/quantized/QuantizeMXValidation.h>

#include <ATen/core/Tensor.h>
#include <ATen/native/quantized/QuantizeMXNames.h>
#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

namespace at::native {

namespace {

using Sizes = c10::SymIntArrayRef;

constexpr std::array<ScalarType, 3> kRealDtypes{
    ScalarType::Float,
    ScalarType::BFloat16,
    ScalarType::Half};

// ---- one rule each, with its text: the received value comes last -----------

bool is_real(ScalarType dtype) {
  return std::find(kRealDtypes.begin(), kRealDtypes.end(), dtype) !=
      kRealDtypes.end();
}

void check_dense(const char* op, const char* name, const Tensor& tensor) {
  std::string kind;
  if (!tensor.defined()) {
    kind = "None";
  } else if (tensor.is_nested()) {
    kind = "a nested tensor";
  } else if (tensor.layout() != kStrided) {
    kind = "layout " + layout_name(tensor.layout());
  } else if (tensor.is_quantized()) {
    kind = "a quantized tensor of dtype " + dtype_name(tensor.scalar_type());
  }
  TORCH_CHECK_TYPE(
      kind.empty(),
      op,
      ": ",
      name,
      " must be a dense strided tensor, got ",
      kind);
}

void check_real(const char* op, const char* name, ScalarType dtype) {
  TORCH_CHECK_TYPE(
      is_real(dtype),
      op,
      ": ",
      name,
      " must be ",
      alternatives(kRealDtypes),
      ", got ",
      dtype_name(dtype));
}

int64_t check_dim(const char* op, int64_t dim, int64_t rank) {
  TORCH_CHECK_INDEX(
      rank > 0, op, ": self must have at least one dimension, got shape []");
  TORCH_CHECK_INDEX(
      -rank <= dim && dim < rank,
      op,
      ": dim must be in [",
      -rank,
      ", ",
      rank - 1,
      "] for a tensor of rank ",
      rank,
      ", got ",
      dim);
  return mx_dim_from_front(dim, rank);
}

const MXFormat& check_element(const char* op, const MXElement& element) {
  if (element.name) {
    const auto* format = find_mx_format(*element.name);
    TORCH_CHECK_VALUE(
        format != nullptr,
        op,
        ": elem_format must be one of ",
        format_names(),
        ", got ",
        *element.name);
    return *format;
  }
  const auto* format = find_mx_format(*element.dtype);
  TORCH_CHECK_TYPE(
      format != nullptr,
      op,
      ": dtype must be ",
      element_dtypes(),
      ", got ",
      dtype_name(*element.dtype));
  return *format;
}

void check_mode(const char* op, int64_t scale_calculation_mode) {
  TORCH_CHECK_VALUE(
      find_mx_mode(scale_calculation_mode) != nullptr,
      op,
      ": scale_calculation_mode must be one of ",
      mode_names(),
      ", got ",
      scale_calculation_mode);
}

void check_swizzle_type(const char* op, int64_t swizzle_type) {
  TORCH_CHECK_VALUE(
      swizzle_type == kMXSwizzleNone || swizzle_type == kMXSwizzle32x4x4,
      op,
      ": swizzle_type must be 0 (NO_SWIZZLE) or 1 (SWIZZLE_32_4_4), got ",
      swizzle_type);
}

void check_block_size(
    const char* op,
    int64_t block_size,
    const MXFormat* format) {
  TORCH_CHECK_VALUE(
      block_size >= 1, op, ": block_size must be at least 1, got ", block_size);
  TORCH_CHECK_VALUE(
      format == nullptr || block_size % format->codes_per_byte() == 0,
      op,
      ": block_size must be even for ",
      format->name,
      " (two codes per byte), got ",
      block_size);
}

void check_multiple(
    const char* op,
    Sizes sizes,
    int64_t dim,
    int64_t block_size,
    const c10::SymInt& size) {
  TORCH_CHECK_VALUE(
      (size % block_size).sym_eq(0).expect_true(__FILE__, __LINE__),
      op,
      ": size ",
      size,
      " of dim ",
      dim,
      " must be a multiple of block_size ",
      block_size,
      ", got shape ",
      sizes);
}

void check_swizzle(
    const char* op,
    int64_t swizzle_type,
    int64_t rank,
    int64_t dim,
    int64_t block_size) {
  if (swizzle_type == kMXSwizzleNone) {
    return;
  }
  TORCH_CHECK_VALUE(
      rank >= 2,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs rank 2 or more, got ",
      rank);
  TORCH_CHECK_VALUE(
      dim == rank - 1,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs the last dim, got dim ",
      dim);
  TORCH_CHECK_VALUE(
      block_size == kMXSwizzleBlockSize,
      op,
      ": swizzle_type ",
      swizzle_type,
      " needs block_size ",
      kMXSwizzleBlockSize,
      ", got ",
      block_size);
}

void check_payload_dtype(
    const char* op,
    ScalarType dtype,
    const MXFormat* format,
    bool named) {
  TORCH_CHECK_TYPE(
      format != nullptr,
      op,
      ": self must be ",
      element_dtypes(),
      ", got ",
      dtype_name(dtype),
      dtype == ScalarType::Byte
          ? "; raw bytes need elem_format (dequantize_mx.format)"
          : "");
  if (!named) {
    return;
  }
  c10::SmallVector<ScalarType, 2> accepted{format->payload_dtype()};
  if (format->has_dtype() && format->dtype != accepted.front()) {
    accepted.push_back(format->dtype);
  }
  TORCH_CHECK_TYPE(
      std::find(accepted.begin(), accepted.end(), dtype) != accepted.end(),
      op,
      ": self must be ",
      alternatives(accepted),
      " for ",
      format->name,
      ", got ",
      dtype_name(dtype));
}

void check_scale_dtype(const char* op, const Tensor& scale) {
  check_dense(op, "scale", scale);
  TORCH_CHECK_TYPE(
      scale.scalar_type() == ScalarType::Float8_e8m0fnu,
      op,
      ": scale must be torch.float8_e8m0fnu, got ",
      dtype_name(scale.scalar_type()),
      scale.scalar_type() == ScalarType::Byte
          ? "; view it: scale.view(torch.float8_e8m0fnu)"
          : "");
}

void check_scale_sizes(
    const char* op,
    Sizes received,
    Sizes expected,
    Sizes values,
    int64_t block_size) {
  bool same = received.size() == expected.size();
  for (size_t i = 0; same && i < expected.size(); ++i) {
    same = received[i].sym_eq(expected[i]).expect_true(__FILE__, __LINE__);
  }
  TORCH_CHECK_VALUE(
      same,
      op,
      ": scale must have shape ",
      expected,
      " for values of shape ",
      values,
      " and block_size ",
      block_size,
      ", got ",
      received);
}

// Whether first * sizes[0] * sizes[1] ... is above 2^63 - 1. What a symbolic
// size will be is not known here.
bool product_overflows(int64_t first, Sizes sizes) {
  bool overflows = false;
  for (const auto& size : sizes) {
    const auto number = size.maybe_as_int();
    if (!number || *number == 0) {
      return false;
    }
    overflows = overflows || c10::mul_overflows(first, *number, &first);
  }
  return overflows;
}

void check_bytes(
    const char* op,
    const char* name,
    const Tensor& self,
    Sizes sizes,
    ScalarType dtype) {
  const auto item_size = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK_VALUE(
      !product_overflows(item_size, sizes),
      op,
      ": the ",
      name,
      " for self of shape ",
      self.sym_sizes(),
      " would have more than 2^63 - 1 bytes");
}

} // namespace

void check_quantize_mx(
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    MXElement element,
    int64_t scale_calculation_mode,
    int64_t swizzle_type) {
  constexpr auto op = "quantize_mx";
  check_dense(op, "self", self);
  check_real(op, "self", self.scalar_type());
  const auto sizes = self.sym_sizes();
  const int64_t rank = self.dim();
  dim = check_dim(op, dim, rank);
  const auto& format = check_element(op, element);
  check_mode(op, scale_calculation_mode);
  check_swizzle_type(op, swizzle_type);
  check_block_size(op, block_size, &format);
  check_multiple(op, sizes, dim, block_size, sizes[dim]);
  check_swizzle(op, swizzle_type, rank, dim, block_size);
  const bool swizzled = swizzle_type != kMXSwizzleNone;
  check_bytes(
      op,
      "output",
      self,
      mx_payload_sizes(sizes, dim, format),
      ScalarType::Byte);
  check_bytes(
      op,
      "scale",
      self,
      mx_scale_sizes(sizes, dim, block_size, swizzled),
      ScalarType::Byte);
}

void check_dequantize_mx(
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::optional<std::string_view> elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  constexpr auto op = "dequantize_mx";
  check_dense(op, "self", self);
  const int64_t rank = self.dim();
  dim = check_dim(op, dim, rank);
  const auto* format = elem_format ? &check_element(op, *elem_format)
                                   : find_mx_format(self.scalar_type());
  check_real(op, "dtype", dtype);
  check_swizzle_type(op, swizzle_type);
  check_block_size(op, block_size, format);
  MXSizes<c10::SymInt> values(self.sym_sizes().begin(), self.sym_sizes().end());
  // Without a format the payload's dtype is at fault. That check comes later.
  if (format != nullptr) {
    const auto one_size = Sizes(values).slice(dim, 1);
    const bool overflows =
        product_overflows(format->codes_per_byte(), one_size);
    TORCH_CHECK_VALUE(
        !overflows,
        op,
        ": the output for self of shape ",
        self.sym_sizes(),
        " would have more than 2^63 - 1 bytes");
    values = mx_value_sizes(self.sym_sizes(), dim, *format);
    check_multiple(op, self.sym_sizes(), dim, block_size, values[dim]);
  }
  check_swizzle(op, swizzle_type, rank, dim, block_size);
  check_payload_dtype(op, self.scalar_type(), format, elem_format.has_value());
  check_scale_dtype(op, scale);
  const bool swizzled = swizzle_type != kMXSwizzleNone;
  check_scale_sizes(
      op,
      scale.sym_sizes(),
      mx_scale_sizes<c10::SymInt>(values, dim, block_size, swizzled),
      values,
      block_size);
  TORCH_CHECK(
      scale.device() == self.device(),
      op,
      ": self and scale must be on one device, got ",
      self.device(),
      " and ",
      scale.device());
  check_bytes(op, "output", self, values, dtype);
}

} // namespace at::native
