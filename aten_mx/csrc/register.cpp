// Binds the CPU kernels and the validation of every call to the ops of
// torch.ops.aten_mx. In PyTorch core torchgen writes this from
// native_functions.yaml, and each kernel validates.

#include "overloads.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace aten_mx {
namespace {

constexpr c10::DispatchKeySet kBelowBackendSelect(
    c10::DispatchKeySet::FULL_AFTER,
    c10::DispatchKey::BackendSelect);

// A tensor with symbolic sizes is on its way to the fake, which validates.
bool is_symbolic(const Tensor& tensor) {
  return tensor.defined() &&
      tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

template <typename Other>
bool is_symbolic(const Other& /*number*/) {
  return false;
}

template <typename Overload, typename Signature>
struct Kernels;

template <typename Overload, typename Result, typename... Arguments>
struct Kernels<Overload, Result(Arguments...)> {
  using Handle = c10::TypedOperatorHandle<Result(Arguments...)>;
  static_assert(
      fits(Overload::schema, static_cast<Result (*)(Arguments...)>(nullptr)),
      "the schema's arguments are not those of the signature");

  static Handle find() {
    const auto name = name_of(Overload::schema);
    const auto dot = std::min(name.find('.'), name.size());
    const auto overload = name.substr(std::min(dot + 1, name.size()));
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(
            ("aten_mx::" + name.substr(0, dot)).c_str(), overload.c_str())
        .template typed<Result(Arguments...)>();
  }

  static Result select(c10::DispatchKeySet keys, Arguments... arguments) {
    static const Handle op = find();
    if (!(is_symbolic(arguments) || ...)) {
      Overload::check(arguments...);
    }
    // A kernel written in differentiable ops must not record them.
    at::AutoDispatchBelowAutograd guard;
    return op.redispatch(keys & kBelowBackendSelect, arguments...);
  }

  static Result run(Arguments... arguments) {
    return Overload::run(arguments...);
  }
};

template <typename Overload>
using KernelsOf = Kernels<Overload, typename Overload::Signature>;

} // namespace

TORCH_LIBRARY_IMPL(aten_mx, CPU, m) {
  for_each_overload([&](auto overload) {
    using Of = KernelsOf<decltype(overload)>;
    m.impl(name_of(overload.schema).c_str(), TORCH_FN(Of::run));
  });
}

TORCH_LIBRARY_IMPL(aten_mx, BackendSelect, m) {
  for_each_overload([&](auto overload) {
    using Of = KernelsOf<decltype(overload)>;
    m.impl(name_of(overload.schema).c_str(), TORCH_FN(Of::select));
  });
}

} // namespace aten_mx
