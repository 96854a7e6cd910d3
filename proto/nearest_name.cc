#include "proto/nearest_name.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace twinstream {
namespace {

// Levenshtein distance, one row of the table at a time.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

size_t Distance(const std::string& a, const std::string& b) {
  const bool one_holds_other = absl::StrContains(a, b) || absl::StrContains(b, a);
  return one_holds_other && std::min(a.size(), b.size()) >= 3 ? 1 : EditDistance(a, b);
}

}  // namespace

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  const std::string wanted = absl::AsciiStrToLower(name);
  std::string nearest;
  size_t least = static_cast<size_t>(-1);
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(wanted, absl::AsciiStrToLower(candidate));
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace twinstream
