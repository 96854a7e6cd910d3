// OpProfile: where the time of one thread's steps went, operation by operation. ProfiledDevice
// fills it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor.h"

namespace twinstream {

// What a row of the profile is about. Products are told apart by shape, as each has its own speed.
struct OpKey {
  absl::string_view op;  // a literal: "product nt", "attention forward"
  DType dtype = DType::kF32;
  // Of products; kVarying: another one in every call or group. All 0 for other operations.
  int64_t m = 0, n = 0, k = 0;

  static constexpr int64_t kVarying = -1;
  friend bool operator==(const OpKey& a, const OpKey& b) = default;
};

// The least that an operation takes: multiplications and additions of products (attention's
// included; row-local arithmetic is not counted, being hidden behind memory), and bytes of memory
// with each operand read once and each result written once.
struct OpWork {
  double flops = 0, bytes = 0;
};

// All calls of one key.
struct OpRow {
  OpKey key;
  int64_t calls = 0;
  double seconds = 0;
  OpWork work;
};

// A table of fixed size: after the constructor no call takes memory. Only the thread that began a
// step may end it, add to the table or read it; IsRecording may be asked by all.
class OpProfile {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMostRows = 128;

  OpProfile();

  // A step of the calling thread. The first step is forgotten when the second begins: it touches
  // memory for the first time and prepares products.
  void BeginStep();
  void EndStep();
  // Whether the calling thread is in a step. What it does between its steps (evaluation) is not
  // recorded, nor what other threads do meanwhile (sums of a collective): that hides behind a step
  // or shows as its waiting.
  bool IsRecording() const;
  // Keys beyond the table's size share one row, "other shapes".
  void Add(const OpKey& key, OpWork work, Clock::duration time);

  absl::Span<const OpRow> rows() const { return rows_; }
  int64_t steps() const { return steps_; }
  bool forgot_first_step() const { return forgot_first_step_; }
  double step_seconds() const { return std::chrono::duration<double>(step_time_).count(); }

 private:
  OpRow& RowOf(const OpKey& key);

  std::atomic<std::thread::id> recorded_thread_{};  // of no thread between steps
  Clock::time_point step_begin_;
  Clock::duration step_time_{};
  int64_t steps_ = 0;
  bool forgot_first_step_ = false;
  std::vector<OpRow> rows_;
};

}  // namespace twinstream
