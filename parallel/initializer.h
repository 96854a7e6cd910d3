// Initial values as a pure function of (seed, parameter name, element): every layout starts from
// the same weights, and no rank draws more than its own boxes.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/box.h"

namespace twinstream {

// Writes box.elements() values, row-major over `box` of the parameter `name` with shape `global`:
// std times a standard normal truncated at 3 standard deviations. std 0: all ones.
void InitializeBox(float std, uint64_t seed, const std::string& name, const Shape& global,
                   const Box& box, float* out);

}  // namespace twinstream
