// The sites of every residual scheme (docs/residual.md): what the tests of their kernels walk.
#pragma once

#include <string>
#include <vector>

#include "core/ops.h"

namespace twinstream::testing {

struct ResidualUnit {
  ResidualRead read;
  ResidualWrite write;
};

struct ResidualScheme {
  std::string name;
  bool y_from_the_start = false;
  std::vector<ResidualUnit> units;  // attention and MLP of the first layers
  ResidualRead final;
};

std::vector<ResidualScheme> ResidualSchemes();

// One site, and which streams it has.
struct ResidualCase {
  std::string name;
  ResidualSite site;
  bool y_before, y_after;
};

// Of every unit: its read alone, its write alone, and its write with the next read. They point into
// the scheme.
std::vector<ResidualCase> CasesOf(const ResidualScheme& scheme);

}  // namespace twinstream::testing
