// How far the first update of the same job may be apart on two layouts, and still be the same
// computation.
#pragma once

#include "proto/job.pb.h"

namespace twinstream {

struct ExpectedRounding {
  double loss = 0;      // relative
  double norm = 0;      // of the gradient, relative
  double gradient = 0;  // of a tensor's largest element
};

// job: resolved. The derivation is in the source file.
ExpectedRounding ExpectedRoundingOf(const JobSpec& job);

}  // namespace twinstream
