// CpuDevice: host memory, everything immediate. The files of this folder are compiled once for each
// instruction set, whose name is then TWINSTREAM_CPU_ISA (CMakeLists.txt).
#pragma once

#include <memory>

#include "core/device.h"

namespace twinstream {

// Whether this machine runs the kernels of namespace avx512.
inline bool HasAvx512Bf16() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
}

// threads: compute threads; 0 leaves OpenMP's default.
namespace avx2 {
std::unique_ptr<Device> MakeCpuDevice(int threads);
}
// Of machines with HasAvx512Bf16().
namespace avx512 {
std::unique_ptr<Device> MakeCpuDevice(int threads);
}

}  // namespace twinstream
