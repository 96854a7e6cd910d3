#include "parallel/communication_thread.h"

#include <chrono>
#include <numeric>
#include <thread>

#include "core/check.h"
#include "gtest/gtest.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

using testing::RunRanks;

Tensor TensorOf(std::vector<int32_t>& values) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kI32,
                {static_cast<int64_t>(values.size())});
}

TEST(CommunicationThread, RunsWhatIsPostedInOrderWithOrWithoutAThread) {
  for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
    RunRanks(2, [&](Transport& transport) {
      CommunicationThread communication(overlap, {.data = 2}, transport);
      std::vector<int64_t> seen;
      const CommunicationThread::Operation operation = [&](Range items) {
        EXPECT_EQ(CurrentActivity(), "a sum");
        std::vector<int32_t> value = {static_cast<int32_t>(items.begin)};
        communication.grid().data().AllReduce(TensorOf(value), Reduction::kSum);
        seen.push_back(value[0]);
      };
      communication.Reserve(5);
      for (int64_t step = 0; step < 20; ++step) {
        CommunicationThread::Number third = 0;
        for (int64_t i = 0; i < 5; ++i) {
          const CommunicationThread::Number number =
              communication.Post("a sum", operation, {5 * step + i, 0});
          if (i == 2) third = number;
        }
        communication.Wait(third);
        if (overlap == Overlap::kOff) {
          EXPECT_EQ(seen.size(), 5 * step + 5);
        }
        communication.WaitForAll();
        ASSERT_EQ(seen.size(), 5 * step + 5);
      }
      for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 2 * static_cast<int64_t>(i));
    });
  }
}

// Collectives of the same kind over the same ranks, at the same time on both threads.
TEST(CommunicationThread, ItsMessagesNeverMeetThoseOfTheMainThread) {
  RunRanks(3, [](Transport& transport) {
    const ProcessGrid grid({.data = 3}, transport);
    CommunicationThread communication(Overlap::kOn, grid.shape(), transport);
    std::vector<int32_t> own(30'000), posted(30'000);
    const CommunicationThread::Operation operation = [&](Range /*items*/) {
      communication.grid().data().AllReduce(TensorOf(posted), Reduction::kSum);
    };
    communication.Reserve(1);
    for (int step = 0; step < 30; ++step) {
      std::iota(own.begin(), own.end(), step);
      std::iota(posted.begin(), posted.end(), 7'000'000 + step);
      communication.Post("a sum", operation, {});
      grid.data().AllReduce(TensorOf(own), Reduction::kSum);
      communication.WaitForAll();
      for (size_t i = 0; i < own.size(); i += 999) {
        ASSERT_EQ(own[i], 3 * (step + static_cast<int>(i)));
        ASSERT_EQ(posted[i], 3 * (7'000'000 + step + static_cast<int>(i)));
      }
    }
  });
}

TEST(CommunicationThread, TheMainThreadGoesOnWhileAnOperationWaits) {
  RunRanks(2, [](Transport& transport) {
    const ProcessGrid grid({.data = 2}, transport);
    CommunicationThread communication(Overlap::kOn, grid.shape(), transport);
    const CommunicationThread::Operation operation = [&](Range /*items*/) {
      communication.grid().data().Barrier();
    };
    communication.Reserve(1);
    // Rank 0's barrier is open until rank 1 has heard from rank 0's main thread.
    std::vector<int32_t> value = {41 + transport.rank()};
    if (transport.rank() == 0) communication.Post("a barrier", operation, {});
    grid.data().Broadcast(TensorOf(value), 0);
    if (transport.rank() == 1) communication.Post("a barrier", operation, {});
    communication.WaitForAll();
    EXPECT_EQ(value[0], 41);
  });
}

TEST(CommunicationThread, EverythingPostedIsDoneBeforeItEnds) {
  RunRanks(2, [](Transport& transport) {
    std::vector<int32_t> value = {1};
    {
      CommunicationThread communication(Overlap::kOn, {.data = 2}, transport);
      const CommunicationThread::Operation operation = [&](Range /*items*/) {
        communication.grid().data().AllReduce(TensorOf(value), Reduction::kSum);
      };
      communication.Reserve(3);
      for (int i = 0; i < 3; ++i) communication.Post("a sum", operation, {});
      communication.KeepMoving();
      communication.WaitForAll();
    }
    EXPECT_EQ(value[0], 8);
  });
}

// Counts how often it is asked to move messages, and says that some are under way `looks` times.
class RestlessTransport final : public Transport {
 public:
  explicit RestlessTransport(int looks) : left_(looks) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  Request Send(absl::Span<const std::byte>, int, int) override { return 0; }
  Request Receive(absl::Span<std::byte>, int, int) override { return 0; }
  void Wait(Request, const char*) override {}
  void WaitInBackground(Request, const char*) override {}
  bool Progress() override {
    ++looks_;
    return --left_ > 0;
  }
  void SetWaitPolicy(WaitPolicy) override {}
  double timeout_seconds() const override { return 600; }
  std::string WaitInProgress(double) const override { return ""; }

  int looks() const { return looks_; }

 private:
  std::atomic<int> left_, looks_{0};
};

TEST(CommunicationThread, LooksAfterMessagesUntilNoneIsUnderWayAndThenRests) {
  RestlessTransport transport(5);
  CommunicationThread communication(Overlap::kOn, {.data = 2}, transport);
  const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  nap();
  EXPECT_EQ(transport.looks(), 0) << "nobody left messages";
  communication.KeepMoving();
  while (transport.looks() < 5) nap();
  nap();
  EXPECT_EQ(transport.looks(), 5);
  communication.KeepMoving();
  while (transport.looks() < 6) nap();
}

class CommunicationThreadDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(CommunicationThreadDeathTest, ATimeoutInAPostedOperationNamesItAndTheRank) {
  const auto wait_for_nobody = [] {
    RunRanks(2, [](Transport& transport) {
      if (transport.rank() == 1) return;
      transport.SetWaitPolicy({.timeout_seconds = 0.25, .name_of = nullptr});
      CommunicationThread communication(Overlap::kOn, {.data = 2}, transport);
      const CommunicationThread::Operation operation = [&](Range /*items*/) {
        const ActivityScope doing("up.weight");
        communication.grid().data().Barrier();
      };
      communication.Reserve(1);
      communication.Wait(communication.Post("reduction of gradients", operation, {}));
    });
  };
  EXPECT_EXIT(
      wait_for_nobody(), ::testing::ExitedWithCode(1),
      "rank 0 waited 0.25 s in (barrier|all-gather) over data for rank 1 \\(during reduction of "
      "gradients, up.weight\\)");
}

}  // namespace
}  // namespace twinstream
