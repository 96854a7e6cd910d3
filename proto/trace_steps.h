// metrics.trace_steps: which steps of a run are traced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace twinstream {

class TraceSteps {
 public:
  // Steps and ranges of them, as in "5", "5-6" or "3,7-9"; empty: none. InvalidArgument names the
  // part that is none, and the character of the text at which it begins (from 1).
  static absl::StatusOr<TraceSteps> Parse(const std::string& text);

  bool Contains(int64_t step) const;
  // How many of the steps first .. last are traced.
  int64_t CountWithin(int64_t first, int64_t last) const;
  int64_t last() const { return ranges_.empty() ? 0 : ranges_.back().last; }  // 0: none

 private:
  struct Range {
    int64_t first, last;
  };
  std::vector<Range> ranges_;  // ascending, apart from each other
};

}  // namespace twinstream
