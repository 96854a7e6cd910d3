#include "proto/trace_steps.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace twinstream {

absl::StatusOr<TraceSteps> TraceSteps::Parse(const std::string& text) {
  TraceSteps steps;
  if (text.empty()) return steps;
  size_t begin = 0;  // of the part in the text
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    Range range = {};
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &range.first) ||
        !absl::SimpleAtoi(ends.back(), &range.last) || range.first < 1 ||
        range.last < range.first) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "\"%s\" at character %d is no step and no range of steps; write steps from 1 on as in "
          "\"5\", \"5-6\" or \"3,7-9\"",
          part, begin + 1));
    }
    if (!steps.ranges_.empty() && range.first <= steps.ranges_.back().last) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "\"%s\" at character %d is not behind the steps before it; write steps in ascending "
          "order, each once",
          part, begin + 1));
    }
    steps.ranges_.push_back(range);
    begin += part.size() + 1;
  }
  return steps;
}

bool TraceSteps::Contains(int64_t step) const { return CountWithin(step, step) > 0; }

int64_t TraceSteps::CountWithin(int64_t first, int64_t last) const {
  int64_t count = 0;
  for (const Range& range : ranges_) {
    count += std::max<int64_t>(0, std::min(last, range.last) - std::max(first, range.first) + 1);
  }
  return count;
}

}  // namespace twinstream
