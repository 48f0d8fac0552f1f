#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/QuantizeMXKernel.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/DequantizeMXAvx512.h>
#include <ATen/native/cpu/DequantizeMXGroup.h>
#include <ATen/native/cpu/QuantizeMXColumnsAvx512.h>
#include <ATen/native/cpu/QuantizeMXTile.h>
#include <c10/util/irange.h>

#include <memory>

namespace at::native {
namespace {

#if defined(CPU_CAPABILITY_AVX512)

using MXPositions = std::make_integer_sequence<int, int{kMXFormats.size()}>;

// Calls f with the format's position in the table as a constant.
template <typename Func, int... positions>
void with_format(
    const MXFormat& format,
    Func&& f,
    std::integer_sequence<int, positions...> /*all*/) {
  const auto position = &format - kMXFormats.data();
  const bool known =
      ((position == positions &&
        (f(std::integral_constant<int, positions>{}), true)) ||
       ...);
  TORCH_INTERNAL_ASSERT(known);
}

template <typename Func>
void with_format(const MXFormat& format, Func&& f) {
  with_format(format, f, MXPositions{});
}

// The same, with whether stores bypass the caches as another constant.
template <typename Func>
void with_format_and_stream(const MXFormat& format, bool stream, Func&& f) {
  with_format(format, [&](auto position) {
    if (stream) {
      f(position, std::true_type{});
    } else {
      f(position, std::false_type{});
    }
  });
}

#endif // CPU_CAPABILITY_AVX512

// ---- quantize --------------------------------------------------------------

// Calls f with groups of blocks in [begin, end): where each block is, how many
// there are, their payload, and room for their scales.
template <typename In, typename Func>
void for_each_group(
    const QuantizeJob& job,
    int64_t block_bytes,
    int64_t begin,
    int64_t end,
    Func&& f) {
  Rows rows = job.rows;
  int64_t blocks_per_row = job.blocks_per_row;
  if (job.stride == 1) {
    blocks_per_row =
        rows.merge_into(blocks_per_row * job.block_size, 1) / job.block_size;
  }
  const auto* base = static_cast<const typename In::raw*>(job.input);
  BlockCursor cursor(rows, blocks_per_row, job.block_size * job.stride, begin);
  for (int64_t block = begin; block < end; block += kGroup) {
    const auto n = static_cast<int>(std::min<int64_t>(kGroup, end - block));
    const typename In::raw* inputs[kGroup];
    for (const auto i : c10::irange(n)) {
      inputs[i] = base + cursor.offset();
      cursor.next();
    }
    uint8_t scale[kGroup];
    f(inputs, n, job.payload + block * block_bytes, scale);
    if (job.swizzle) {
      for (const auto i : c10::irange(n)) {
        job.put_scale(block + i, scale[i]);
      }
    } else {
      std::memcpy(job.scale + block, scale, n);
    }
  }
}

#if defined(CPU_CAPABILITY_AVX512)

template <int F, typename In, bool stream>
void quantize_blocks_of_32(const QuantizeJob& job, int64_t begin, int64_t end) {
  constexpr int64_t bytes = payload_bytes<F>(32);
  for_each_group<In>(
      job,
      bytes,
      begin,
      end,
      [&](const auto** inputs, int n, uint8_t* payload, uint8_t* scale) {
        if (n == kGroup) {
          quantize_group<F, In, stream>(inputs, job.rule, payload, scale);
        } else {
          std::fill(inputs + n, inputs + kGroup, inputs[0]);
          alignas(64) uint8_t codes[kGroup * bytes];
          quantize_group<F, In, false>(inputs, job.rule, codes, scale);
          std::memcpy(payload, codes, n * bytes);
        }
      });
  if constexpr (stream) {
    _mm_sfence();
  }
}

#endif // CPU_CAPABILITY_AVX512

template <typename In>
void quantize_blocks(
    const QuantizeJob& job,
    const MXFormat& format,
    int64_t begin,
    int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
  if (job.block_size == 32 && job.stride == 1) {
    with_format_and_stream(format, job.stream, [&](auto position, auto stream) {
      quantize_blocks_of_32<position, In, stream>(job, begin, end);
    });
    return;
  }
#endif
  with_payload(format, [&](auto kind) {
    with_constant<32>(job.block_size, [&](auto block_size) {
      for_each_group<In>(
          job,
          job.block_size / format.codes_per_byte(),
          begin,
          end,
          [&](const auto** inputs, int n, uint8_t* payload, uint8_t* scale) {
            quantize_group<In, kind>(
                inputs,
                n,
                job.stride,
                block_size,
                format,
                job.rule,
                payload,
                scale);
          });
    });
  });
}

// Streaming stores bypass the caches, which pays where the output would not
// stay in them anyway. Not above: allocations of 32 MiB and more are mapped
// anew each time (glibc's largest threshold), and the kernel's zeroing of a new
// page has just brought it into the cache.
constexpr int64_t kStreamFrom = int64_t{4} << 20;
constexpr int64_t kStreamBelow = int64_t{32} << 20;

template <typename In>
void quantize_linear(const QuantizeJob& job, const MXFormat& format) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  const int64_t group_elements = kGroup * job.block_size;
  const int64_t groups = (blocks + kGroup - 1) / kGroup;
  at::parallel_for(
      0,
      groups,
      std::max<int64_t>(1, kGrainElements / group_elements),
      [&](int64_t begin, int64_t end) {
        quantize_blocks<In>(
            job, format, begin * kGroup, std::min(blocks, end * kGroup));
      });
}

#if defined(CPU_CAPABILITY_AVX512)

template <int F, typename In>
void quantize_columns_of_32(const QuantizeJob& job, int64_t inner) {
  using Block = Columns<F, In>;
  const Tiling tiling{Block::columns, Block::payload_rows, Block::panel};
  const int64_t row_bytes = payload_bytes<F>(job.blocks_per_row * 32);
  const bool stream = job.stream && row_bytes % 64 == 0;
  for_each_tile(
      job,
      kMXFormats[F],
      inner,
      tiling,
      [&](int64_t begin, int64_t end, const auto& tile_at) {
        // Up to 53 KiB, too much for a stack.
        const auto columns = std::make_unique<Block>();
        for (const auto index : c10::irange(begin, end)) {
          if (stream) {
            quantize_columns<F, In, true>(job, tile_at(index), *columns);
          } else {
            quantize_columns<F, In, false>(job, tile_at(index), *columns);
          }
        }
        if (stream) {
          _mm_sfence();
        }
      });
}

#endif // CPU_CAPABILITY_AVX512

template <typename In>
void quantize_tiled(const QuantizeJob& job, const MXFormat& format) {
  const int64_t inner = innermost(job.rows);
#if defined(CPU_CAPABILITY_AVX512)
  if (job.block_size == 32 && job.rows.strides[inner] == 1) {
    with_format(format, [&](auto position) {
      quantize_columns_of_32<position, In>(job, inner);
    });
    return;
  }
#endif
  // Tiles follow each other across a page of memory, then down the blocks.
  Tiling tiling;
  tiling.panel = 4096 / (kTileRows * sizeof(typename In::raw));
  with_payload(format, [&](auto kind) {
    for_each_tile(
        job,
        format,
        inner,
        tiling,
        [&](int64_t begin, int64_t end, const auto& tile_at) {
          for (const auto index : c10::irange(begin, end)) {
            quantize_tile<In, kind>(job, format, tile_at(index));
          }
        });
  });
}

template <typename In>
void quantize_job(const QuantizeJob& job, const MXFormat& format) {
  if (job.stride == 1 || job.rows.count == 1) {
    quantize_linear<In>(job, format);
  } else {
    quantize_tiled<In>(job, format);
  }
}

void quantize_dtype(
    const QuantizeJob& job,
    const MXFormat& format,
    ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return quantize_job<Float32>(job, format);
    case ScalarType::BFloat16:
      return quantize_job<BFloat16Bits>(job, format);
    default:
      return quantize_job<Float16>(job, format);
  }
}

bool worth_streaming(const void* data, int64_t bytes) {
  return kStreamFrom <= bytes && bytes < kStreamBelow &&
      reinterpret_cast<uintptr_t>(data) % 64 == 0;
}

void quantize_mx_kernel(
    const Tensor& payload,
    const Tensor& scale,
    const Tensor& input,
    const MXFormat& format,
    const MXScaleMode& mode,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  QuantizeJob job{
      static_cast<uint8_t*>(payload.mutable_data_ptr()),
      static_cast<uint8_t*>(scale.mutable_data_ptr()),
      input.const_data_ptr(),
      MXScaleRule(mode, format),
      input.size(dim) / block_size,
      block_size,
      input.size(dim) == 1 ? 1 : input.stride(dim),
      Rows(input.sizes(), input.strides(), dim),
      std::nullopt,
      worth_streaming(payload.const_data_ptr(), payload.numel())};
  if (swizzled) {
    job.swizzle.emplace(input.size(-2), job.blocks_per_row);
  }
  quantize_dtype(job, format, input.scalar_type());
}

// ---- dequantize ------------------------------------------------------------

#if defined(CPU_CAPABILITY_AVX512)

template <int F, typename Out, bool stream>
void dequantize_blocks_of_32(
    const DequantizeJob& job,
    int64_t begin,
    int64_t end) {
  for_each_block<Out>(
      job,
      payload_bytes<F>(32),
      begin,
      end,
      dequantize_block_32<F, Out, stream>);
  if constexpr (stream) {
    _mm_sfence();
  }
}

#endif // CPU_CAPABILITY_AVX512

template <typename Out>
void dequantize_range(
    const DequantizeJob& job,
    const MXFormat& format,
    int64_t begin,
    int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
  if (job.block_size == 32 && job.stride == 1) {
    with_format_and_stream(format, job.stream, [&](auto position, auto stream) {
      dequantize_blocks_of_32<position, Out, stream>(job, begin, end);
    });
    return;
  }
#endif
  dequantize_blocks<Out>(job, format, begin, end);
}

template <typename Out>
void dequantize_job(const DequantizeJob& job, const MXFormat& format) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  at::parallel_for(
      0,
      blocks,
      std::max<int64_t>(1, kGrainElements / job.block_size),
      [&](int64_t begin, int64_t end) {
        dequantize_range<Out>(job, format, begin, end);
      });
}

void dequantize_mx_kernel(
    const Tensor& output,
    const Tensor& payload,
    const Tensor& scale,
    const MXFormat& format,
    int64_t dim,
    int64_t block_size,
    bool swizzled) {
  DequantizeJob job{
      output.mutable_data_ptr(),
      static_cast<const uint8_t*>(payload.const_data_ptr()),
      static_cast<const uint8_t*>(scale.const_data_ptr()),
      output.size(dim) / block_size,
      block_size,
      payload.size(dim) == 1 ? 1 : payload.stride(dim),
      Rows(payload.sizes(), payload.strides(), dim),
      Rows(scale.sizes(), scale.strides(), dim),
      scale.stride(dim),
      std::nullopt,
      scale.size(dim),
      worth_streaming(
          output.const_data_ptr(), static_cast<int64_t>(output.nbytes()))};
  if (swizzled) {
    job.swizzle.emplace(output.size(-2), job.blocks_per_row);
  }
  switch (output.scalar_type()) {
    case ScalarType::Float:
      return dequantize_job<ToFloat32>(job, format);
    case ScalarType::BFloat16:
      return dequantize_job<ToBFloat16>(job, format);
    default:
      return dequantize_job<ToFloat16>(job, format);
  }
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(quantize_mx_stub, &quantize_mx_kernel)
ALSO_REGISTER_AVX512_DISPATCH(dequantize_mx_stub, &dequantize_mx_kernel)

} // namespace at::native
