#include "parallel/communication_thread.h"

#include <algorithm>
#include <chrono>

#include "core/check.h"
#include "core/device_collectives.h"
#include "core/threads.h"

namespace twinstream {
namespace {

// Between two looks at messages under way. Each look takes the core from the main thread for a few
// microseconds, so while nothing new is left under way they become rarer.
constexpr std::chrono::microseconds kFirstLook(50), kLastLook(800);

std::unique_ptr<Device> DeviceBeside(Overlap overlap, const ProcessGrid& foreground,
                                     Device& device) {
  if (overlap == Overlap::kOff || foreground.path() != TensorPath::kNetwork) return nullptr;
  return device.network()->Beside();
}

}  // namespace

CommunicationThread::CommunicationThread(Overlap overlap, const GridShape& shape,
                                         Transport& transport)
    : transport_(transport), grid_(shape, transport_) {
  StartThread(overlap);
}

CommunicationThread::CommunicationThread(Overlap overlap, const GridUse& use,
                                         const ProcessGrid& foreground, Transport& transport,
                                         Device& device)
    : transport_(transport),
      device_(&device),
      beside_(DeviceBeside(overlap, foreground, device)),
      grid_(foreground.shape(), use, transport_, this->device(), foreground.path()) {
  StartThread(overlap);
}

void CommunicationThread::StartThread(Overlap overlap) {
  if (overlap == Overlap::kOff || transport_.size() == 1) return;
  if (grid_.path() == TensorPath::kHost) thread_.emplace([this] { Work(); });
}

CommunicationThread::~CommunicationThread() {
  if (!thread_) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_->join();
}

void CommunicationThread::Reserve(int64_t operations) {
  WaitForAll();  // entries change places
  const std::lock_guard lock(mutex_);
  queue_.resize(queue_.size() + static_cast<size_t>(operations));
}

CommunicationThread::Number CommunicationThread::Post(const char* what, const Operation& operation,
                                                      Range items) {
  const Entry entry = {.what = what, .operation = &operation, .items = items};
  if (beside_ != nullptr) return RunBeside(entry);
  if (!thread_) {
    const ActivityScope doing(what);
    operation(items);
    return 0;
  }
  const std::lock_guard lock(mutex_);
  NextEntry() = entry;
  wake_.notify_one();
  return posted_;
}

CommunicationThread::Number CommunicationThread::RunBeside(const Entry& entry) {
  const ActivityScope doing(entry.what);
  beside_->network()->Await(*device_->network(), device_->network()->Mark());
  (*entry.operation)(entry.items);
  NextEntry() = entry;
  EntryOf(posted_).mark = beside_->network()->Mark();
  return posted_;
}

CommunicationThread::Entry& CommunicationThread::NextEntry() {
  Check(posted_ - done_ < static_cast<Number>(queue_.size()), "%d operations are posted already",
        queue_.size());
  return EntryOf(++posted_);
}

bool CommunicationThread::IsDone(Number number) {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

void CommunicationThread::Wait(Number number) {
  if (beside_ != nullptr && number > done_) {
    device_->network()->Await(*beside_->network(), EntryOf(number).mark);
    done_ = number;
  }
  if (!thread_) return;
  std::unique_lock lock(mutex_);
  done_changed_.wait(lock, [&] { return done_ >= number; });
}

void CommunicationThread::KeepMoving() {
  if (!thread_) return;
  const std::lock_guard lock(mutex_);
  next_look_ = kFirstLook;
  if (moving_) return;
  moving_ = true;
  wake_.notify_one();
}

void CommunicationThread::Work() {
  ComputeOnOneThread();  // the cores are the main thread's
  std::unique_lock lock(mutex_);
  while (true) {
    if (done_ < posted_) {
      RunNext(lock);
    } else if (closing_) {
      return;
    } else if (moving_) {
      MoveMessages(lock);
    } else {
      wake_.wait(lock, [this] { return done_ < posted_ || closing_ || moving_; });
    }
  }
}

void CommunicationThread::RunNext(std::unique_lock<std::mutex>& lock) {
  const Entry entry = EntryOf(done_ + 1);
  lock.unlock();
  {
    const ActivityScope doing(entry.what);
    (*entry.operation)(entry.items);
  }
  lock.lock();
  ++done_;
  done_changed_.notify_one();
}

void CommunicationThread::MoveMessages(std::unique_lock<std::mutex>& lock) {
  moving_ = false;  // a call of KeepMoving from now on counts for the next look
  lock.unlock();
  const bool under_way = transport_.Progress();
  lock.lock();
  if (!under_way) return;
  moving_ = true;
  next_look_ = std::min(2 * next_look_, kLastLook);
  wake_.wait_for(lock, next_look_, [this] { return done_ < posted_ || closing_; });
}

}  // namespace twinstream
