// The watch over operations between cards, on a stream of an emulated card that goes on by hand. Of
// every operation it puts two events on its stream: operation n starts at 2 n - 1, has ended at 2
// n.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "core/cuda/emulated/runtime.h"
#include "core/cuda/emulated/streams.h"
#include "core/cuda/operation_watch.h"
#include "core/cuda/stream.h"

namespace twinstream::testing {
namespace {

using ::testing::ExitedWithCode;
using Number = OperationWatch::Number;

constexpr Number kMost = OperationWatch::kMostUnderWay;
constexpr double kTimeout = 1;  // seconds; the watch looks every 0.1

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

constexpr int kCard = 3;

// Makes its card current. Nothing happens on it but by hand.
class HeldStream {
 public:
  HeldStream() : stream_(kCard, CudaStream::Priority::kUsual) { Reach(0); }
  ~HeldStream() { Reach(issued()); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  cudaStream_t get() const { return stream_.get(); }
  int64_t issued() const { return gpu::PiecesIssued(get()); }
  void Reach(int64_t last) { gpu::AllowWork(get(), last); }

 private:
  CudaStream stream_;
};

// A watch over a stream, and the failure that the network reports.
struct Watched {
  explicit Watched(double timeout_seconds = kTimeout)
      : watch({.card = kCard,
               .group = "tensor group 5",
               .timeout_seconds = timeout_seconds,
               .failure = [this] { return std::string(network_failed ? "a peer left" : ""); }},
              stream.get()) {}

  Number Put(const char* what) {
    const Number number = watch.Begin(what);
    watch.End();
    return number;
  }
  void Put(const char* what, Number count) {
    for (Number i = 0; i < count; ++i) Put(what);
  }
  void Start(Number number) { stream.Reach(2 * number - 1); }
  void Finish(Number number) { stream.Reach(2 * number); }

  HeldStream stream;
  std::atomic<bool> network_failed = false;
  OperationWatch watch;
};

class OperationWatchTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { gpu::SetEmulatedHost({.cards = kCard + 1}); }
};

// The thread of a watch begins in the child process.
class OperationWatchDeathTest : public OperationWatchTest {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// ---- What ends the process.

TEST_F(OperationWatchDeathTest, AFailureOfTheNetworkDoes) {
  const auto fail = [] {
    Watched watched;
    watched.Put("all-reduce");
    watched.network_failed = true;
    Pause(30);
  };
  EXPECT_EXIT(fail(), ExitedWithCode(1), "all-reduce over tensor group 5 failed: a peer left");
}

// At once: not only when the watch looks again.
TEST_F(OperationWatchDeathTest, AFailureThatTheNextOperationMeetsDoes) {
  const auto fail = [] {
    Watched watched(/*timeout_seconds=*/60);
    watched.Put("all-gather");
    watched.network_failed = true;
    watched.Put("broadcast");
    Die("the broadcast has been put");
  };
  EXPECT_EXIT(fail(), ExitedWithCode(1), "all-gather over tensor group 5 failed: a peer left");
}

TEST_F(OperationWatchDeathTest, AnErrorOfTheCardDoes) {
  const auto fail = [] {
    Watched watched;
    watched.Put("all-reduce");
    gpu::BreakCard(kCard, cudaErrorLaunchFailure);
    Pause(30);
  };
  EXPECT_EXIT(fail(), ExitedWithCode(1),
              "cudaEventQuery: unspecified launch failure \\(cudaErrorLaunchFailure\\) on card 3 ");
}

TEST_F(OperationWatchDeathTest, AnOperationThatDoesNotEndDoes) {
  const auto hang = [] {
    Watched watched;
    watched.Put("all-reduce");
    watched.Put("reduce-scatter");
    watched.Put("all-gather");
    watched.Start(2);
    Pause(30);
  };
  EXPECT_EXIT(hang(), ExitedWithCode(1),
              "reduce-scatter over tensor group 5 has not ended for [0-9]+ s: another rank of the "
              "group has failed or has not come to it");
}

// The host itself may wait for the others in them.
TEST_F(OperationWatchDeathTest, CallsThatDoNotReturnDo) {
  const auto hang = [] {
    Watched watched;
    watched.Put("all-reduce");
    watched.Finish(1);
    watched.watch.Begin("connection");
    Pause(30);
  };
  EXPECT_EXIT(hang(), ExitedWithCode(1), "connection over tensor group 5 has not ended for");
}

TEST_F(OperationWatchDeathTest, TheNameIsThatOfThisRoundOfTheRing) {
  const auto hang = [] {
    Watched watched;
    watched.Put("first round", kMost);
    watched.Finish(kMost);
    watched.Put("second round", 7);
    watched.Start(kMost + 5);
    Pause(30);
  };
  EXPECT_EXIT(hang(), ExitedWithCode(1), "second round over tensor group 5 has not ended for");
}

TEST_F(OperationWatchDeathTest, AWaitForAnOperationThatNobodyHasPutDoes) {
  const auto wait = [] {
    Watched watched;
    const HeldStream other;
    watched.Put("all-reduce");
    watched.watch.MakeWait(other.get(), 2);
  };
  EXPECT_EXIT(wait(), ExitedWithCode(1),
              "operation 2 over tensor group 5 is waited for after 1 operations");
}

// ---- What does not. A watch that were too strict would end the test.

TEST_F(OperationWatchTest, OperationsThatEndInTimeGoOn) {
  Watched watched;
  for (Number n = 1; n <= 5; ++n) {
    EXPECT_EQ(watched.Put("all-reduce"), n);
    watched.Start(n);
    Pause(kTimeout / 3);
    watched.Finish(n);
  }
}

// Each has the whole time for itself, whenever it was put on the stream.
TEST_F(OperationWatchTest, OperationsPutTogetherAreTimedOneByOne) {
  Watched watched;
  watched.Put("all-reduce", 5);
  for (Number n = 1; n <= 5; ++n) {
    watched.Start(n);
    Pause(kTimeout / 3);
    watched.Finish(n);
  }
}

// It waits for what the device computes before it.
TEST_F(OperationWatchTest, AnOperationThatHasNotStartedIsNotTimed) {
  Watched watched;
  watched.Put("all-reduce");
  Pause(kTimeout + 0.5);
  watched.Finish(1);
}

TEST_F(OperationWatchTest, NobodyAsksForFailuresWhileNothingIsUnderWay) {
  Watched watched;
  watched.network_failed = true;
  Pause(0.3);
  watched.network_failed = false;
  watched.Put("all-reduce");
  watched.Finish(1);
  Pause(0.3);  // the watch has seen it end
  watched.network_failed = true;
  Pause(0.3);
}

// An event that has not happened leaves an error that the next launch would be blamed for.
TEST_F(OperationWatchTest, LooksLeaveNoErrorBehind) {
  Watched watched;
  watched.Put("all-reduce", 2);  // the second looks at the first
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Another would be in use from then on, and lose some hundred MB of memory.
TEST_F(OperationWatchDeathTest, NoOtherCardThanThatOfTheStreamIsUsed) {
  const auto watch = [] {
    {
      Watched watched;
      watched.Put("all-reduce");
      Pause(0.3);  // it has looked
      watched.Finish(1);
    }
    for (int card = 0; card < kCard; ++card) {
      if (gpu::IsInUse(card)) Die("another card is in use");
    }
    std::exit(gpu::IsInUse(kCard) ? 0 : 2);
  };
  EXPECT_EXIT(watch(), ExitedWithCode(0), "");
}

// ---- The ring.

TEST_F(OperationWatchTest, AFullRingWaitsForItsOldestOperation) {
  Watched watched(/*timeout_seconds=*/60);
  watched.Put("all-reduce", kMost);
  std::atomic<Number> put = kMost;
  std::thread owner([&] {
    put = watched.Put("all-gather");
    put = watched.Put("all-gather");
  });
  Pause(0.3);
  EXPECT_EQ(put, kMost);
  EXPECT_EQ(watched.stream.issued(), 2 * kMost);
  watched.Finish(1);
  while (put == kMost) Pause(0.01);
  Pause(0.3);
  EXPECT_EQ(put, kMost + 1) << "the second operation has not ended";
  watched.Finish(2);
  owner.join();
  EXPECT_EQ(put, kMost + 2);
}

TEST_F(OperationWatchTest, ManyRoundsOfTheRingPassBehindTheStream) {
  Watched watched;
  for (Number n = 1; n <= 5 * kMost; ++n) {
    if (n > kMost) watched.Finish(n - kMost);
    ASSERT_EQ(watched.Put("all-reduce"), n);
    ASSERT_EQ(watched.stream.issued(), 2 * n);
  }
}

// ---- Waits.

TEST_F(OperationWatchTest, AWaitIsForTheEndOfItsOperation) {
  Watched watched;
  watched.Put("all-reduce", 3);
  for (const Number number : {1, 2, 3}) {
    HeldStream other;
    CudaEvent behind_the_wait;
    watched.watch.MakeWait(other.get(), number);
    behind_the_wait.Record(other.get());
    other.Reach(2);
    watched.Start(number);
    EXPECT_FALSE(behind_the_wait.Happened()) << number;
    watched.Finish(number);
    EXPECT_TRUE(behind_the_wait.Happened()) << number;
  }
}

// Its place in the ring is another's, for which nobody has asked to wait.
TEST_F(OperationWatchTest, AnOldOperationIsNotWaitedFor) {
  Watched watched;
  const HeldStream other;
  watched.Put("all-reduce", kMost);
  watched.Finish(7);
  watched.Put("all-gather", 7);
  for (Number number = 1; number <= 7; ++number) watched.watch.MakeWait(other.get(), number);
  EXPECT_EQ(other.issued(), 0);
  for (const Number number : {Number{8}, kMost, kMost + 7}) {
    watched.watch.MakeWait(other.get(), number);
  }
  EXPECT_EQ(other.issued(), 3);
  watched.Finish(kMost + 7);
}

// ---- Recorded operations.

// The watch's stream, taken into a capture of another one.
class RecordedOperationsTest : public OperationWatchTest {
 protected:
  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(first_.get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    CudaEvent begun;
    begun.Record(first_.get());
    begun.MakeWait(watched_.stream.get());
  }
  // Nobody goes on by hand from now on.
  void EndAndRun() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(first_.get(), &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, first_.get()), cudaSuccess);
    first_.Synchronize();
    cudaGraphDestroy(graph);
    cudaGraphExecDestroy(exec);
  }
  Number Record(const std::function<bool()>& operation) {
    const Number number = watched_.watch.Begin("recorded");
    gpu::IssueAwaiting(watched_.stream.get(), operation);
    watched_.watch.End();
    return number;
  }

  const HeldStream usual_;  // its card is current
  CudaStream first_{kCard, CudaStream::Priority::kUsual};
  Watched watched_;
};

// The second lasts until what waits for the first alone is done.
TEST_F(RecordedOperationsTest, AWaitIsForTheEndOfItsOperationAlone) {
  bool first_is_done = false, waited = false;
  Begin();
  const Number first = Record([&] { return first_is_done = true; });
  const Number second = Record([&] { return waited; });
  watched_.watch.MakeWait(first_.get(), first);
  gpu::Issue(first_.get(), [&] { waited = first_is_done; });
  watched_.watch.MakeWait(first_.get(), second);
  EndAndRun();
  EXPECT_TRUE(waited);
}

TEST_F(RecordedOperationsTest, AreAsManyAsOneLikesAndUnwatched) {
  const Number before = watched_.Put("all-reduce");
  Begin();
  for (Number n = 1; n <= 2 * kMost; ++n) ASSERT_EQ(Record([] { return true; }), before + n);
  watched_.watch.MakeWait(first_.get(), before + 2 * kMost);
  Pause(0.3);  // the watch has looked
  EndAndRun();
  watched_.Finish(before);
  EXPECT_EQ(watched_.Put("all-gather"), before + 1);
  watched_.Finish(before + 1);
}

}  // namespace
}  // namespace twinstream::testing
