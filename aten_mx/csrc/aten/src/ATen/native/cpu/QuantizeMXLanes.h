#pragma once

// Included by QuantizeMXKernel.cpp alone: 32-bit integers side by side, in the
// registers of the instruction set that is compiled for. at::vec has no
// narrowing to bytes, and holds integers in arrays in the plain build and on
// AArch64, which compilers don't turn into vector instructions here.
//
// Each of the files has Lanes, and
//   load_bits:   float32 bits of neighbours, in their order;
//   load_run:    those of 16 or 32 neighbours, in the order that suits
//                store_bytes and store_nibbles of the same dtype;
//   store_bytes: the low byte of each lane; the numbers fit in it;
//   store_nibbles: the low four bits of each lane, two in a byte;
//   load_bytes and store_values: the way back;
//   prefetch_line: a hint to fetch a cache line, which may not be there;
// and Bytes, 16 of them, for QuantizeMXTranspose.h.

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
#include <ATen/native/cpu/QuantizeMXLanesAvx2.h>
#elif defined(__SSE2__)
#include <ATen/native/cpu/QuantizeMXLanesSse2.h>
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
#include <ATen/native/cpu/QuantizeMXLanesNeon.h>
#else
#include <ATen/native/cpu/QuantizeMXLanesPlain.h>
#endif
