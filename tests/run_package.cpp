// Runs an AOTInductor package in a process without Python: test_native_alone.py builds and calls it.
//
//   run_package LIBATEN_MX_CPU.SO PACKAGE.pt2
//
// Prints each output's bytes as hexadecimal, a line each.

#include <dlfcn.h>

#include <cstdio>

#include <ATen/ops/arange.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  if (dlopen(argv[1], RTLD_NOW) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  torch::inductor::AOTIModelPackageLoader loader(argv[2]);
  const at::Tensor x = at::arange(4 * 64).to(at::kFloat).sub(100).div(7).reshape({4, 64});
  for (const at::Tensor& output : loader.run({x})) {
    const at::Tensor dense = output.contiguous();
    const auto* bytes = static_cast<const unsigned char*>(dense.const_data_ptr());
    for (size_t i = 0; i < dense.nbytes(); ++i) {
      std::printf("%02x", bytes[i]);
    }
    std::printf("\n");
  }
}
