// What CUDA's libraries return, checked: overloads, no macro.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "core/check.h"

namespace twinstream {

// `what`: the call or the kernel, for the message, which names the thread's card too.
inline void Check(cudaError_t error, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (error != cudaSuccess) {
    int card = 0;
    (void)cudaGetDevice(&card);  // sets it even where earlier work has failed
    Die(absl::StrFormat("%s: %s (%s) on card %d", what, cudaGetErrorString(error),
                        cudaGetErrorName(error), card),
        file, line);
  }
}

inline void Check(cublasStatus_t status, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    Die(absl::StrFormat("%s: %s", what, cublasLtGetStatusString(status)), file, line);
  }
}

}  // namespace twinstream
