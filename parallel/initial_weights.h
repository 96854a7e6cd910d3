// The weights that a run starts from when it has no checkpoint: train.initial_weights.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "core/tensor.h"
#include "parallel/box.h"

namespace twinstream {

// Whether the file's tensors are the model's, from the headers alone; the errors of
// LoadInitialWeights.
absl::Status CheckInitialWeights(const std::string& path, absl::Span<const TensorSpec> model);

// Fills the needed pieces (f32, or bf16 with rounded values) from a safetensors file or directory,
// on any layout. Local to the rank. model: name and global shape of every tensor of the whole
// model. INVALID_ARGUMENT names all tensors that are missing, extra, misshapen or neither F32, BF16
// nor F64.
absl::Status LoadInitialWeights(const std::string& path, absl::Span<const TensorSpec> model,
                                absl::Span<const Piece> needed, Device& device);

}  // namespace twinstream
