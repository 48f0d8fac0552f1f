// An accelerator for PyTorch whose memory is the host's, so that it runs on any machine.
//
// This is what a vendor's library brings before it has a single kernel: memory, the current device,
// tensors, views, copies, and a fallback that computes everything else on the CPU. Nothing here
// knows of aten_mx; its kernels are in kernels.cpp.

#include <cstring>

#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
const c10::Device kOnly(kDevice, 0);
const c10::Stream kStream(c10::Stream::DEFAULT, kOnly);

// ---- Memory -------------------------------------------------------------------------------------

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    return {data, data, &c10::free_cpu, kOnly};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
HostAllocator allocator;
REGISTER_ALLOCATOR(kDevice, &allocator)

// ---- The current device -------------------------------------------------------------------------

// One device, and each op has ended when it returns: nothing to switch, nothing to wait for. The
// base class would name the device -1, as for the CPU, where tensors say "mxdev:0", and refuse the
// events that backward() records between threads.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device getDevice() const override { return kOnly; }
  c10::Device exchangeDevice(c10::Device) const override { return kOnly; }
  c10::Stream getStream(c10::Device) const noexcept override { return kStream; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return kStream; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// backward() asks these, and storage.resize_() the last one.
struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};
Hooks hooks;
[[maybe_unused]] const bool hooks_registered =
    (at::RegisterPrivateUse1HooksInterface(&hooks), true);

// ---- Tensors ------------------------------------------------------------------------------------

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<c10::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, &allocator, DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype),
      format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, &allocator, DispatchKeySet(DispatchKey::PrivateUse1),
      c10::dtype_or_default(dtype));
}

// The same memory as a CPU tensor. A real device has a transfer here instead.
Tensor on_host(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return tensor;
  }
  Tensor host = at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  // Lazy negation and conjugation are flags of the tensor, which its memory doesn't show.
  host._set_neg(tensor.is_neg());
  host._set_conj(tensor.is_conj());
  return host;
}

// PyTorch's copy_ and .to come here for every pair with this device on either side.
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  on_host(to).copy_(on_host(self), non_blocking);
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  at::native::resize_(to, self.sizes());
  return copy_from(self, to, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);  // used by the fallback
  // These touch sizes and strides only, or memory that the host can reach, so PyTorch's own serve.
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_", &at::native::set_cpu_);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);  // torch.load
}

// copy_ resolves a lazy negation by a copy, which comes back here: without these, without end.
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

// ---- Everything else ----------------------------------------------------------------------------

void compute_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}

// Without this, an op under torch.autocast("mxdev") finds no kernel.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

}  // namespace
