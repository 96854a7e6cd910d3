// The shapes of models whose speed is measured.
#pragma once

#include "absl/types/span.h"

namespace twinstream::benchmarks {

struct ModelShape {
  const char* name;
  const char* job;  // JobSpec in text format: sizes of the model and of the batch
};

// S, M, 124M, 400M, 1.3B, and "tiny", of which nothing is worth timing.
absl::Span<const ModelShape> ModelShapes();

}  // namespace twinstream::benchmarks
