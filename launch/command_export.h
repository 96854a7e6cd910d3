// twinstream export: a checkpoint's weights as safetensors, for others to read and for
// train.initial_weights.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace twinstream {

// checkpoint: a step directory or a directory of them. Writes output/model.safetensors, or several
// files with model.safetensors.index.json above 5 GB: exactly the model's tensors in global shape,
// no optimizer state. UNIMPLEMENTED for a format other than "safetensors".
absl::Status CommandExport(const std::string& checkpoint, const std::string& output,
                           const std::string& format);

// The same with files of at most `file_bytes` bytes of tensors (a larger tensor has a file of its
// own). One tensor is in memory at a time; every digest is checked.
absl::Status ExportWeights(const std::string& step_directory, const std::string& output,
                           int64_t file_bytes);

}  // namespace twinstream
