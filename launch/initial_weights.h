// train.initial_weights: start from the weights of a safetensors file or directory (what `export`
// writes).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "core/safetensors.h"
#include "models/decoder.h"
#include "parallel/box.h"
#include "parallel/parameter_store.h"

namespace twinstream {

// Opens the file and compares it with the model: InvalidArgument names every missing, extra and
// misshapen tensor and every dtype that is not F32, BF16 or F64.
absl::StatusOr<SafetensorsSource> OpenInitialWeights(const std::string& path,
                                                     const std::vector<ModelParameter>& model);

// Fills this rank's boxes of all parameters.
void LoadInitialWeights(const SafetensorsSource& source, const ParameterStore& parameters,
                        Device& device);

}  // namespace twinstream
