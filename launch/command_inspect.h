// twinstream inspect: what is in a checkpoint, which layout wrote it, whether it is whole; or two
// of them compared.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace twinstream {

// paths: one or two checkpoints (step directories or directories of them). One: prints its contents
// and checks every digest; DATA_LOSS if it is not whole, after naming each damaged tensor. Two:
// prints the jobs' differences and, per tensor, whether the values are identical or how far apart.
absl::Status CommandInspect(const std::vector<std::string>& paths);

}  // namespace twinstream
