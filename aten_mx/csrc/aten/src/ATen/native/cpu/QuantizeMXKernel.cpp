#define TORCH_ASSERT_ONLY_METHOD_OPERATORS
#include <ATen/native/cpu/QuantizeMXKernel.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/cpu/DequantizeMXBlock.h>
#include <ATen/native/cpu/QuantizeMXColumnsAvx512.h>
#include <ATen/native/cpu/QuantizeMXTile.h>
#include <c10/util/irange.h>

#include <memory>

namespace at::native {
namespace {

// ---- quantize --------------------------------------------------------------

#if defined(CPU_CAPABILITY_AVX512)

template <int F, typename In, bool stream>
void quantize_groups(const QuantizeJob& job, int64_t begin, int64_t end) {
  constexpr int64_t bytes = payload_bytes<F>(32);
  Rows rows = job.rows;
  const int64_t blocks_per_row =
      rows.merge_into(job.blocks_per_row * 32, 1) / 32;
  const auto* base = static_cast<const typename In::raw*>(job.input);
  BlockCursor cursor(rows, blocks_per_row, 32, begin);
  for (int64_t block = begin; block < end; block += kGroup) {
    const int64_t n = std::min<int64_t>(kGroup, end - block);
    const typename In::raw* inputs[kGroup];
    for (const auto i : c10::irange(n)) {
      inputs[i] = base + cursor.offset();
      cursor.next();
    }
    uint8_t* payload = job.payload + block * bytes;
    uint8_t scale[kGroup];
    if (n == kGroup) {
      quantize_group<F, In, stream>(inputs, job.rule, payload, scale);
    } else {
      std::fill(inputs + n, inputs + kGroup, inputs[0]);
      alignas(64) uint8_t codes[kGroup * bytes];
      quantize_group<F, In, false>(inputs, job.rule, codes, scale);
      std::memcpy(payload, codes, n * bytes);
    }
    if (job.swizzle) {
      for (const auto i : c10::irange(n)) {
        job.put_scale(block + i, scale[i]);
      }
    } else {
      std::memcpy(job.scale + block, scale, n);
    }
  }
  if constexpr (stream) {
    _mm_sfence();
  }
}

#endif // CPU_CAPABILITY_AVX512

template <int F, typename In>
void quantize_blocks(const QuantizeJob& job, int64_t begin, int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
  if (job.block_size == 32 && job.stride == 1) {
    if (job.stream) {
      quantize_groups<F, In, true>(job, begin, end);
    } else {
      quantize_groups<F, In, false>(job, begin, end);
    }
    return;
  }
#endif
  const int64_t bytes = payload_bytes<F>(job.block_size);
  const auto* base = static_cast<const typename In::raw*>(job.input);
  BlockCursor cursor(
      job.rows, job.blocks_per_row, job.block_size * job.stride, begin);
  for (int64_t block = begin; block < end; ++block) {
    const uint8_t byte = quantize_block<F, In>(
        base + cursor.offset(),
        job.stride,
        job.block_size,
        job.rule,
        job.payload + block * bytes);
    job.put_scale(block, byte);
    cursor.next();
  }
}

// Elements a thread should have at least; at::internal::GRAIN_SIZE is for
// kernels that do one operation on each.
constexpr int64_t kGrainElements = 16384;

// Streaming stores bypass the caches, which pays where the output would not
// stay in them anyway. Not above: allocations of 32 MiB and more are mapped
// anew each time (glibc's largest threshold), and the kernel's zeroing of a new
// page has just brought it into the cache.
constexpr int64_t kStreamFrom = int64_t{4} << 20;
constexpr int64_t kStreamBelow = int64_t{32} << 20;

template <int F, typename In>
void quantize_linear(const QuantizeJob& job) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  const int64_t group_elements = kGroup * job.block_size;
  const int64_t groups = (blocks + kGroup - 1) / kGroup;
  at::parallel_for(
      0,
      groups,
      std::max<int64_t>(1, kGrainElements / group_elements),
      [&](int64_t begin, int64_t end) {
        quantize_blocks<F, In>(
            job, begin * kGroup, std::min(blocks, end * kGroup));
      });
}

template <int F, typename In>
void quantize_tiled(const QuantizeJob& job) {
  // The dimension along which neighbouring rows lie closest together.
  int64_t inner = 0;
  const auto dims = static_cast<int64_t>(job.rows.sizes.size());
  for (const auto i : c10::irange(dims)) {
    const bool candidate = job.rows.sizes[i] > 1 && job.rows.strides[i] > 0;
    if (job.rows.sizes[inner] == 1 ||
        (candidate && job.rows.strides[i] <= job.rows.strides[inner])) {
      inner = i;
    }
  }
  int64_t row_step = 1;
  for (int64_t i = inner + 1; i < dims; ++i) {
    row_step *= job.rows.sizes[i];
  }
  const int64_t inner_size = job.rows.sizes[inner];
  int64_t tile_rows = kTileRows;
  int64_t tile_bytes = kTileRows;
  int64_t panel = 1; // tiles side by side before those below
#if defined(CPU_CAPABILITY_AVX512)
  const bool by_columns = job.block_size == 32 && job.rows.strides[inner] == 1;
  if (by_columns) {
    tile_rows = Columns<F, In>::columns;
    tile_bytes = Columns<F, In>::payload_rows;
    panel = Columns<F, In>::panel;
  }
#endif
  Rows outer = job.rows;
  outer.sizes.erase(outer.sizes.begin() + inner);
  outer.strides.erase(outer.strides.begin() + inner);
  outer.count /= inner_size;

  const int64_t tile_blocks = std::max<int64_t>(
      1, tile_bytes * kMXFormats[F].codes_per_byte() / job.block_size);
  const int64_t row_tiles = (inner_size + tile_rows - 1) / tile_rows;
  const int64_t block_tiles =
      (job.blocks_per_row + tile_blocks - 1) / tile_blocks;
  const int64_t tile_elements = tile_rows * tile_blocks * job.block_size;
  at::parallel_for(
      0,
      outer.count * block_tiles * row_tiles,
      std::max<int64_t>(1, kGrainElements / tile_elements),
      [&](int64_t begin, int64_t end) {
#if defined(CPU_CAPABILITY_AVX512)
        // Up to 53 KiB, too much for a stack.
        std::unique_ptr<Columns<F, In>> columns(
            by_columns ? new Columns<F, In> : nullptr);
#endif
        for (const auto index : c10::irange(begin, end)) {
          const int64_t outer_row = index / (row_tiles * block_tiles);
          const int64_t inner_tile = index % (row_tiles * block_tiles);
          const int64_t first_of_panel =
              inner_tile / (panel * block_tiles) * panel;
          const int64_t width = std::min(panel, row_tiles - first_of_panel);
          const int64_t in_panel = inner_tile - first_of_panel * block_tiles;
          const int64_t row_tile = first_of_panel + in_panel % width;
          const int64_t block_tile = in_panel / width;
          Tile tile;
          tile.row_stride = job.rows.strides[inner];
          tile.row_step = row_step;
          tile.count = std::min(tile_rows, inner_size - row_tile * tile_rows);
          tile.offset =
              outer.offset(outer_row) + row_tile * tile_rows * tile.row_stride;
          tile.first =
              (outer_row / row_step * inner_size + row_tile * tile_rows) *
                  row_step +
              outer_row % row_step;
          tile.block_begin = block_tile * tile_blocks;
          tile.block_end =
              std::min(tile.block_begin + tile_blocks, job.blocks_per_row);
#if defined(CPU_CAPABILITY_AVX512)
          if (by_columns) {
            const int64_t row_bytes = payload_bytes<F>(job.blocks_per_row * 32);
            if (job.stream && row_bytes % 64 == 0) {
              quantize_columns<F, In, true>(job, tile, *columns);
            } else {
              quantize_columns<F, In, false>(job, tile, *columns);
            }
            continue;
          }
#endif
          quantize_tile<F, In>(job, tile);
        }
#if defined(CPU_CAPABILITY_AVX512)
        if (job.stream) {
          _mm_sfence();
        }
#endif
      });
}

template <int F, typename In>
void quantize_job(const QuantizeJob& job) {
  if (job.stride == 1 || job.rows.count == 1) {
    quantize_linear<F, In>(job);
  } else {
    quantize_tiled<F, In>(job);
  }
}

template <int F>
void quantize_dtype(const QuantizeJob& job, ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float:
      return quantize_job<F, Float32>(job);
    case ScalarType::BFloat16:
      return quantize_job<F, BFloat16Bits>(job);
    default:
      return quantize_job<F, Float16>(job);
  }
}

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

using MXPositions = std::make_integer_sequence<int, int{kMXFormats.size()}>;

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
  with_format(
      format,
      [&](auto position) {
        quantize_dtype<position>(job, input.scalar_type());
      },
      MXPositions{});
}

// ---- dequantize ------------------------------------------------------------

template <int F, typename Out>
void dequantize_job(const DequantizeJob& job) {
  const int64_t blocks = job.rows.count * job.blocks_per_row;
  at::parallel_for(
      0,
      blocks,
      std::max<int64_t>(1, kGrainElements / job.block_size),
      [&](int64_t begin, int64_t end) {
        if (job.stream) {
          dequantize_range<F, Out, true>(job, begin, end);
        } else {
          dequantize_range<F, Out, false>(job, begin, end);
        }
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
  with_format(
      format,
      [&](auto position) {
        switch (output.scalar_type()) {
          case ScalarType::Float:
            return dequantize_job<position, ToFloat32>(job);
          case ScalarType::BFloat16:
            return dequantize_job<position, ToBFloat16>(job);
          default:
            return dequantize_job<position, ToFloat16>(job);
        }
      },
      MXPositions{});
}

} // namespace

ALSO_REGISTER_AVX512_DISPATCH(quantize_mx_stub, &quantize_mx_kernel)
ALSO_REGISTER_AVX512_DISPATCH(dequantize_mx_stub, &dequantize_mx_kernel)

} // namespace at::native
