// prepare-data: files of text to token files for training.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace twinstream {

// Reads `inputs` one after another, as they are, and writes output_prefix.bin (little-endian u16),
// output_prefix.json (tokens, vocabulary, tokenizer) and, when validation_fraction > 0, the last
// fraction of the tokens to output_prefix.validation.bin instead. Prints one line with the counts.
// Files appear whole, by rename, or not at all; memory does not grow with the input. The only
// tokenizer is "bytes": ids 0-255, no separators.
// InvalidArgument or NotFound for what the caller got wrong; anything else is the disk's.
absl::Status CommandPrepareData(const std::vector<std::string>& inputs,
                                const std::string& output_prefix, const std::string& tokenizer,
                                double validation_fraction);

}  // namespace twinstream
