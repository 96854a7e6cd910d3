// NearestName: what a person probably meant, for messages about unknown names.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace twinstream {

// The candidate closest to `name`: one that contains it (or is contained in it), else the one with
// the fewest edited letters; case is ignored. The first of equals; "" without candidates.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

}  // namespace twinstream
