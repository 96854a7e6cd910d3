// What CUDA's libraries return, checked: overloads, no macro.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <string>

#include "core/check.h"

namespace twinstream {

// `what`: the call or the kernel, for the message, which names the thread's card where CUDA still
// knows it.
inline void Check(cudaError_t error, const char* what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (error != cudaSuccess) {
    int card = -1;
    (void)cudaGetDevice(&card);  // may fail too
    const std::string where = card < 0 ? "" : absl::StrFormat(" on card %d", card);
    Die(absl::StrFormat("%s: %s (%s)%s", what, cudaGetErrorString(error), cudaGetErrorName(error),
                        where),
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
