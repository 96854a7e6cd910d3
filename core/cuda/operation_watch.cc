#include "core/cuda/operation_watch.h"

#include <utility>

#include "core/cuda/check.h"

namespace twinstream {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks(100);

}  // namespace

OperationWatch::OperationWatch(Options options, cudaStream_t stream)
    : options_(std::move(options)), stream_(stream), thread_([this] { Watch(); }) {}

OperationWatch::~OperationWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

OperationWatch::Number OperationWatch::Begin(const char* what) {
  if (IsCaptured(stream_)) {
    recorded_.emplace_back();
    return begun_ + static_cast<Number>(recorded_.size());
  }
  recorded_.clear();
  // The event is not recorded again meanwhile: only this thread does that.
  if (begun_ >= kMostUnderWay) At(begun_ + 1).ended.Synchronize();
  const std::lock_guard lock(mutex_);
  Look();
  Operation& operation = At(++begun_);
  operation.what = what;
  operation.started.Record(stream_);
  return begun_;
}

void OperationWatch::End() {
  if (!recorded_.empty()) return recorded_.back().Record(stream_);
  const std::lock_guard lock(mutex_);
  At(++put_).ended.Record(stream_);
}

void OperationWatch::MakeWait(cudaStream_t other, Number number) {
  const Number last = put_ + static_cast<Number>(recorded_.size());
  Check(number <= last, "operation %d over %s is waited for after %d operations", number,
        options_.group, last);
  if (IsRecorded(number)) {
    return recorded_[static_cast<size_t>(number - begun_ - 1)].MakeWait(other);
  }
  if (number <= begun_ - kMostUnderWay) return;  // has ended: Begin waited for it
  At(number).ended.MakeWait(other);
}

void OperationWatch::Watch() {
  Check(cudaSetDevice(options_.card), "cudaSetDevice");
  std::unique_lock lock(mutex_);
  while (!closing_) {
    Look();
    wake_.wait_for(lock, kBetweenLooks, [this] { return closing_; });
  }
}

void OperationWatch::Look() {
  while (done_ < put_ && At(done_ + 1).ended.Happened()) {
    ++done_;
    running_ = false;
  }
  if (done_ == begun_) return;
  const char* const what = At(done_ + 1).what;
  const std::string failure = options_.failure();
  if (!failure.empty()) {
    Die(absl::StrFormat("%s over %s failed: %s", what, options_.group, failure));
  }
  if (!running_ && IsRunning()) {
    running_ = true;
    since_ = Clock::now();
  }
  if (!running_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
  Check(seconds < options_.timeout_seconds,
        "%s over %s has not ended for %.0f s: another rank of the group has failed or has not come "
        "to it",
        what, options_.group, seconds);
}

// The oldest that has not ended: what was before it on the stream is done, or the host is still in
// the calls that put it there.
bool OperationWatch::IsRunning() { return done_ == put_ || At(done_ + 1).started.Happened(); }

}  // namespace twinstream
