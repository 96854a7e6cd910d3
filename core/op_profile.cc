#include "core/op_profile.h"

#include <algorithm>

#include "core/check.h"

namespace twinstream {

OpProfile::OpProfile() { rows_.reserve(kMostRows); }

void OpProfile::BeginStep() {
  if (steps_ == 1 && !forgot_first_step_) {
    rows_.clear();
    steps_ = 0;
    step_time_ = {};
    forgot_first_step_ = true;
  }
  recorded_thread_ = std::this_thread::get_id();
  step_begin_ = Clock::now();
}

void OpProfile::EndStep() {
  Check(IsRecording(), "the end of a step that this thread has not begun");
  step_time_ += Clock::now() - step_begin_;
  recorded_thread_ = std::thread::id();
  ++steps_;
}

bool OpProfile::IsRecording() const { return recorded_thread_ == std::this_thread::get_id(); }

void OpProfile::Add(const OpKey& key, OpWork work, Clock::duration time) {
  OpRow& row = RowOf(key);
  ++row.calls;
  row.seconds += std::chrono::duration<double>(time).count();
  row.work.flops += work.flops;
  row.work.bytes += work.bytes;
}

OpRow& OpProfile::RowOf(const OpKey& key) {
  const auto found =
      std::find_if(rows_.begin(), rows_.end(), [&](const OpRow& row) { return row.key == key; });
  if (found != rows_.end()) return *found;
  if (rows_.size() == kMostRows) return rows_.back();
  const bool is_last = rows_.size() == kMostRows - 1;
  rows_.push_back({.key = is_last ? OpKey{.op = "other shapes"} : key});
  return rows_.back();
}

}  // namespace twinstream
