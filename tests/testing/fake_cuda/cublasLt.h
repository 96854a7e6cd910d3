// Stands in for cuBLASLt's header of this name: what core/cuda/check.h names. Only declared.
#pragma once

// NOLINTBEGIN(readability-identifier-naming)
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
const char* cublasLtGetStatusString(cublasStatus_t status);
// NOLINTEND(readability-identifier-naming)
