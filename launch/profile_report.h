// What a profile says about one rank's steps: a table for a person and the same as JSON.
#pragma once

#include <string>

#include "core/device.h"
#include "core/op_profile.h"

namespace twinstream {

// What this rank's device reaches at most.
struct Ceilings {
  double f32_flops = 0;   // FLOP/s of products of float32 operands
  double bf16_flops = 0;  // and of bf16 ones, in the better type of the two
  double bandwidth = 0;   // bytes/s of memory
  // The least seconds in which the device could do all calls of a row.
  double FloorSeconds(const OpRow& row) const;
};

// Measures for a few seconds, in some 300 MiB of a host's memory or 800 of a card's.
Ceilings MeasureCeilings(Device& device);

// Operations in descending order of time, then the sum of them and the rest of the steps. Several
// lines, the last one without its end. profile: of at least one step.
std::string ProfileTable(const OpProfile& profile, const Ceilings& ceilings);
std::string ProfileJson(const OpProfile& profile, const Ceilings& ceilings);

}  // namespace twinstream
