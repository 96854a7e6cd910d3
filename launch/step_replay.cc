#include "launch/step_replay.h"

#include "core/check.h"
#include "parallel/collectives.h"

namespace twinstream {

template <typename F>
void StepReplay::Watched(const char* what, F f) {
  const ActivityScope doing(what);
  if (watch_ != nullptr) watch_->Begin(what);
  f();
  if (watch_ != nullptr) watch_->End();
}

// Who ran it alone would wait for operations that the others issue in another order, or not at all.
bool StepReplay::Record(absl::FunctionRef<void()> issue) {
  Watched("recording of a step", [&] { work_ = device_.Record(issue); });
  if (AnyRank(world_, work_ == nullptr)) work_ = nullptr;
  return work_ != nullptr;
}

bool StepReplay::Run(absl::FunctionRef<void()> issue) {
  if (work_ == nullptr && !Record(issue)) return false;
  Watched("replayed step", [&] { work_->Run(); });
  return true;
}

}  // namespace twinstream
