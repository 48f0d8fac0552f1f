// Binds the kernels of native_functions_patch/ to the ops of torch.ops.aten_mx.
// In PyTorch core this file is what torchgen makes of native_functions.yaml.

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/quantized/QuantizeMX.h>
#include <torch/library.h>

namespace {

using at::ScalarType;
using at::Tensor;
using at::native::describe_dequantize_mx;
using at::native::describe_quantize_mx;

// A tensor with symbolic sizes is on its way to the fake, which validates.
bool is_symbolic(const Tensor& tensor) {
  return tensor.defined() &&
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name, const char* overload) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, overload)
      .typed<Signature>();
}

c10::DispatchKeySet below_backend_select(c10::DispatchKeySet keys) {
  return keys &
      c10::DispatchKeySet(
             c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
}

std::tuple<Tensor, Tensor> select_quantize_mx(
    c10::DispatchKeySet keys,
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype,
    int64_t mode) {
  using Signature = std::tuple<Tensor, Tensor>(
      const Tensor&, int64_t, int64_t, ScalarType, int64_t);
  static const auto op = find<Signature>("aten_mx::quantize_mx", "");
  if (!is_symbolic(self)) {
    describe_quantize_mx(
        self, dim, block_size, dtype, std::nullopt, mode, at::native::kMXSwizzleNone);
  }
  // A kernel written in differentiable ops must not record them.
  at::AutoDispatchBelowAutograd guard;
  return op.redispatch(
      below_backend_select(keys), self, dim, block_size, dtype, mode);
}

std::tuple<Tensor, Tensor> select_quantize_mx_format(
    c10::DispatchKeySet keys,
    const Tensor& self,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    int64_t mode,
    int64_t swizzle_type) {
  using Signature = std::tuple<Tensor, Tensor>(
      const Tensor&, int64_t, int64_t, std::string_view, int64_t, int64_t);
  static const auto op = find<Signature>("aten_mx::quantize_mx", "format");
  if (!is_symbolic(self)) {
    describe_quantize_mx(
        self, dim, block_size, std::nullopt, elem_format, mode, swizzle_type);
  }
  at::AutoDispatchBelowAutograd guard;
  return op.redispatch(
      below_backend_select(keys), self, dim, block_size, elem_format, mode, swizzle_type);
}

Tensor select_dequantize_mx(
    c10::DispatchKeySet keys,
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    ScalarType dtype) {
  using Signature =
      Tensor(const Tensor&, const Tensor&, int64_t, int64_t, ScalarType);
  static const auto op = find<Signature>("aten_mx::dequantize_mx", "");
  if (!is_symbolic(self) && !is_symbolic(scale)) {
    describe_dequantize_mx(
        self, scale, dim, block_size, std::nullopt, dtype, at::native::kMXSwizzleNone);
  }
  at::AutoDispatchBelowAutograd guard;
  return op.redispatch(
      below_backend_select(keys), self, scale, dim, block_size, dtype);
}

Tensor select_dequantize_mx_format(
    c10::DispatchKeySet keys,
    const Tensor& self,
    const Tensor& scale,
    int64_t dim,
    int64_t block_size,
    std::string_view elem_format,
    ScalarType dtype,
    int64_t swizzle_type) {
  using Signature = Tensor(
      const Tensor&, const Tensor&, int64_t, int64_t, std::string_view, ScalarType, int64_t);
  static const auto op = find<Signature>("aten_mx::dequantize_mx", "format");
  if (!is_symbolic(self) && !is_symbolic(scale)) {
    describe_dequantize_mx(
        self, scale, dim, block_size, elem_format, dtype, swizzle_type);
  }
  at::AutoDispatchBelowAutograd guard;
  return op.redispatch(
      below_backend_select(keys), self, scale, dim, block_size, elem_format, dtype, swizzle_type);
}

} // namespace

TORCH_LIBRARY_IMPL(aten_mx, CPU, m) {
  m.impl("quantize_mx", TORCH_FN(at::native::quantize_mx_cpu));
  m.impl("quantize_mx.format", TORCH_FN(at::native::quantize_mx_format_cpu));
  m.impl("dequantize_mx", TORCH_FN(at::native::dequantize_mx_cpu));
  m.impl("dequantize_mx.format", TORCH_FN(at::native::dequantize_mx_format_cpu));
}

TORCH_LIBRARY_IMPL(aten_mx, BackendSelect, m) {
  m.impl("quantize_mx", TORCH_FN(select_quantize_mx));
  m.impl("quantize_mx.format", TORCH_FN(select_quantize_mx_format));
  m.impl("dequantize_mx", TORCH_FN(select_dequantize_mx));
  m.impl("dequantize_mx.format", TORCH_FN(select_dequantize_mx_format));
}
