// The watch over operations between cards, on streams that go on by hand (fake_cuda/stream.h). Of
// every operation it puts two marks on its stream: operation n starts at 2 n - 1, has ended at 2 n.
#include "core/cuda/operation_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/fake_cuda/stream.h"

namespace twinstream::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ExitedWithCode;
using ::testing::IsEmpty;
using Number = OperationWatch::Number;

constexpr Number kMost = OperationWatch::kMostUnderWay;
constexpr double kTimeout = 1;  // seconds; the watch looks every 0.1

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// A watch over a stream, and the failure that the network reports.
struct Watched {
  explicit Watched(double timeout_seconds = kTimeout)
      : watch({.card = 3,
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

  FakeStream stream;
  std::atomic<bool> network_failed = false;
  OperationWatch watch;
};

// The thread of a watch begins in the child process.
class OperationWatchDeathTest : public ::testing::Test {
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
    FailEventQueries(cudaErrorLaunchFailure);
    Pause(30);
  };
  EXPECT_EXIT(fail(), ExitedWithCode(1),
              "cudaEventQuery: unspecified launch failure \\(cudaErrorLaunchFailure\\)");
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
    FakeStream other;
    watched.Put("all-reduce");
    watched.watch.MakeWait(other.get(), 2);
  };
  EXPECT_EXIT(wait(), ExitedWithCode(1),
              "operation 2 over tensor group 5 is waited for after 1 operations");
}

// ---- What does not. A watch that were too strict would end the test.

TEST(OperationWatchTest, OperationsThatEndInTimeGoOn) {
  Watched watched;
  for (Number n = 1; n <= 5; ++n) {
    EXPECT_EQ(watched.Put("all-reduce"), n);
    watched.Start(n);
    Pause(kTimeout / 3);
    watched.Finish(n);
  }
}

// Each has the whole time for itself, whenever it was put on the stream.
TEST(OperationWatchTest, OperationsPutTogetherAreTimedOneByOne) {
  Watched watched;
  watched.Put("all-reduce", 5);
  for (Number n = 1; n <= 5; ++n) {
    watched.Start(n);
    Pause(kTimeout / 3);
    watched.Finish(n);
  }
}

// It waits for what the device computes before it.
TEST(OperationWatchTest, AnOperationThatHasNotStartedIsNotTimed) {
  Watched watched;
  watched.Put("all-reduce");
  Pause(kTimeout + 0.5);
  watched.Finish(1);
}

TEST(OperationWatchTest, NobodyAsksForFailuresWhileNothingIsUnderWay) {
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
TEST(OperationWatchTest, LooksLeaveNoErrorBehind) {
  Watched watched;
  watched.Put("all-reduce", 2);  // the second looks at the first
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(OperationWatchTest, ItsThreadUsesTheCardOfTheStream) {
  const size_t before = CardsSet().size();
  {
    const Watched watched;
    while (CardsSet().size() == before) Pause(0.01);
  }
  EXPECT_EQ(CardsSet().back(), 3);
}

// ---- The ring.

TEST(OperationWatchTest, AFullRingWaitsForItsOldestOperation) {
  Watched watched(/*timeout_seconds=*/60);
  watched.Put("all-reduce", kMost);
  std::atomic<Number> put = kMost;
  std::thread owner([&] {
    put = watched.Put("all-gather");
    put = watched.Put("all-gather");
  });
  Pause(0.3);
  EXPECT_EQ(put, kMost);
  EXPECT_EQ(watched.stream.marks(), 2 * kMost);
  watched.Finish(1);
  while (put == kMost) Pause(0.01);
  Pause(0.3);
  EXPECT_EQ(put, kMost + 1) << "the second operation has not ended";
  watched.Finish(2);
  owner.join();
  EXPECT_EQ(put, kMost + 2);
}

TEST(OperationWatchTest, ManyRoundsOfTheRingPassBehindTheStream) {
  Watched watched;
  for (Number n = 1; n <= 5 * kMost; ++n) {
    if (n > kMost) watched.Finish(n - kMost);
    ASSERT_EQ(watched.Put("all-reduce"), n);
    ASSERT_EQ(watched.stream.marks(), 2 * n);
  }
}

// ---- Waits.

TEST(OperationWatchTest, AWaitIsForTheEndOfItsOperation) {
  Watched watched;
  FakeStream other;
  watched.Put("all-reduce", 3);
  for (const Number number : {2, 3, 1}) watched.watch.MakeWait(other.get(), number);
  EXPECT_THAT(other.awaited(), ElementsAre(4, 6, 2));
  EXPECT_THAT(watched.stream.awaited(), IsEmpty());
}

// Its place in the ring is another's, for which nobody has asked to wait.
TEST(OperationWatchTest, AnOldOperationIsNotWaitedFor) {
  Watched watched;
  FakeStream other;
  watched.Put("all-reduce", kMost);
  watched.Finish(7);
  watched.Put("all-gather", 7);
  for (Number number = 1; number <= 7; ++number) watched.watch.MakeWait(other.get(), number);
  EXPECT_THAT(other.awaited(), IsEmpty());
  for (const Number number : {Number{8}, kMost, kMost + 7}) {
    watched.watch.MakeWait(other.get(), number);
  }
  EXPECT_THAT(other.awaited(), ElementsAre(16, 2 * kMost, 2 * kMost + 14));
}

}  // namespace
}  // namespace twinstream::testing
