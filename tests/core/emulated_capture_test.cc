// Captures of the emulated runtime keep to CUDA's rules: events take streams in and put the work of
// a graph in order, and no other dependence leads into a capture or out of it.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"
#include "core/cuda/stream.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

class CaptureTest : public ::testing::Test {
 protected:
  ~CaptureTest() override {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    (void)cudaGetLastError();
  }

  cudaStream_t first() const { return first_.get(); }
  cudaStream_t second() const { return second_.get(); }
  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(first(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  cudaError_t End() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);  // of an earlier capture
    return cudaStreamEndCapture(first(), &graph_);
  }
  void Instantiate() {
    ASSERT_EQ(End(), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec_, graph_, 0), cudaSuccess);
  }
  void Launch() { ASSERT_EQ(cudaGraphLaunch(exec_, first()), cudaSuccess); }
  void Allow(int64_t pieces) { gpu::AllowWork(first(), pieces); }
  int64_t Issued() const { return gpu::PiecesIssued(first()); }
  void Do(cudaStream_t stream, char letter) {
    gpu::Issue(stream, [this, letter] { done_ += letter; });
  }
  // Later work of `to` waits for what `from` has been given.
  void Order(cudaStream_t from, cudaStream_t to) {
    event_.Record(from);
    event_.MakeWait(to);
  }
  // a, then b on the other stream, then c.
  void Record() {
    Begin();
    Do(first(), 'a');
    Order(first(), second());
    Do(second(), 'b');
    Order(second(), first());
    Do(first(), 'c');
    Instantiate();
  }
  static cudaStreamCaptureStatus StatusOf(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }

  CudaStream first_{0, CudaStream::Priority::kUsual}, second_{0, CudaStream::Priority::kUsual};
  CudaEvent event_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  std::string done_;
};

// ---- Graphs.

TEST_F(CaptureTest, EachLaunchDoesTheWorkOfAllStreamsInTheOrderOfEvents) {
  Record();
  first_.Synchronize();
  second_.Synchronize();
  EXPECT_EQ(done_, "");
  Do(first(), '(');
  Launch();
  Do(first(), ',');
  Launch();
  Do(first(), ')');
  first_.Synchronize();
  EXPECT_EQ(done_, "(abc,abc)");
}

// Not for that of the launch before.
TEST_F(CaptureTest, WorkWaitsForThatOfItsOwnLaunch) {
  Record();
  Launch();
  Allow(Issued());
  EXPECT_EQ(done_, "abc");
  const int64_t before = Issued();
  Launch();
  Allow(before + 1);  // it has begun
  EXPECT_EQ(done_, "abc");
  Allow(kAll);
  EXPECT_EQ(done_, "abcabc");
}

// Each goes on alone until the other has come as far.
TEST_F(CaptureTest, BranchesGoOnSideBySide) {
  int first_is_at = 0, second_is_at = 0;
  Begin();
  Order(first(), second());
  for (int i = 1; i <= 3; ++i) {
    gpu::IssueAwaiting(first(), [&, i] { return first_is_at = i, second_is_at >= i; });
    gpu::IssueAwaiting(second(), [&, i] { return second_is_at = i, first_is_at >= i; });
  }
  Order(second(), first());
  Instantiate();
  Launch();
  first_.Synchronize();
  EXPECT_EQ(first_is_at + second_is_at, 6);
}

// Though it waits for none of the capture's.
TEST_F(CaptureTest, ABranchWaitsForWhatTheStreamWasGivenBefore) {
  Begin();
  Order(first(), second());
  Do(second(), 'b');
  Order(second(), first());
  Instantiate();
  Allow(Issued());
  Do(first(), 'a');
  Launch();
  Allow(Issued() - 3);  // nothing of it: a, the graph's begin and its end
  EXPECT_EQ(done_, "");
  Allow(kAll);
  EXPECT_EQ(done_, "ab");
}

TEST_F(CaptureTest, WhatComesAfterAGraphWaitsForItsBranches) {
  bool goes_on = false;
  Begin();
  Order(first(), second());
  gpu::IssueAwaiting(second(), [&] { return goes_on; });
  Order(second(), first());
  Instantiate();
  Launch();
  Do(first(), 'd');
  Allow(kAll);
  EXPECT_EQ(done_, "");
  goes_on = true;
  gpu::WakeWaiting();
  first_.Synchronize();
  EXPECT_EQ(done_, "d");
}

// ---- Streams.

TEST_F(CaptureTest, AStreamIsInItFromItsFirstWaitToTheEnd) {
  EXPECT_EQ(StatusOf(first()), cudaStreamCaptureStatusNone);
  Begin();
  EXPECT_EQ(StatusOf(first()), cudaStreamCaptureStatusActive);
  CudaEvent nowhere;
  nowhere.MakeWait(second());
  EXPECT_EQ(StatusOf(second()), cudaStreamCaptureStatusNone);
  Order(first(), second());
  EXPECT_EQ(StatusOf(second()), cudaStreamCaptureStatusActive);
  EXPECT_EQ(End(), cudaSuccess);
  EXPECT_EQ(StatusOf(first()), cudaStreamCaptureStatusNone);
  EXPECT_EQ(StatusOf(second()), cudaStreamCaptureStatusNone);
}

TEST_F(CaptureTest, WorkThatTheFirstStreamHasNotWaitedForIsAnError) {
  Begin();
  Order(first(), second());
  Do(second(), 'a');
  Order(second(), first());
  Do(second(), 'b');
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph_, nullptr);
  Do(second(), 'c');
  second_.Synchronize();
  EXPECT_EQ(done_, "c");
}

// ---- Events.

TEST_F(CaptureTest, AWaitForAnEventOfBeforeBreaksIt) {
  event_.Record(second());
  second_.Synchronize();
  Begin();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  cudaEvent_t before = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&before, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(before, second()), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(first(), before, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(StatusOf(first()), cudaStreamCaptureStatusInvalidated);
  EXPECT_EQ(cudaEventRecord(before, first()), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  cudaEventDestroy(before);
}

TEST_F(CaptureTest, ItsEventsAreNobodysUntilTheyAreRecordedAgain) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  Begin();
  ASSERT_EQ(cudaEventRecord(event, first()), cudaSuccess);
  EXPECT_EQ(End(), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(second(), event, 0), cudaErrorCapturedEvent);
  Begin();
  EXPECT_EQ(cudaStreamWaitEvent(first(), event, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaEventRecord(event, first()), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  cudaEventDestroy(event);
}

TEST_F(CaptureTest, AQueryFromAnotherThreadBreaksItWhereItIsOfItsEvents) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, second()), cudaSuccess);
  const auto query = [&] {
    cudaError_t error = cudaSuccess;
    std::thread([&] { error = cudaEventQuery(event); }).join();
    return error;
  };
  Begin();
  EXPECT_EQ(query(), cudaErrorNotReady);
  EXPECT_EQ(StatusOf(first()), cudaStreamCaptureStatusActive);
  ASSERT_EQ(cudaEventRecord(event, first()), cudaSuccess);
  EXPECT_EQ(query(), cudaErrorCapturedEvent);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
  cudaEventDestroy(event);
}

}  // namespace
}  // namespace twinstream::testing
