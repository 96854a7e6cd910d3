#include "parallel/thread_transport.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

using ::twinstream::testing::RunRanks;

absl::Span<std::byte> Bytes(int& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof(value)};
}

TEST(ThreadTransport, MessagesOfOneChannelArriveInOrder) {
  constexpr int kMessages = 200;
  RunRanks(2, [](Transport& transport) {
    const int peer = 1 - transport.rank();
    std::vector<int> out(kMessages), in(kMessages, -1);
    std::vector<Transport::Request> requests;
    for (int i = 0; i < kMessages; ++i) {
      out[i] = i;
      requests.push_back(transport.Send(Bytes(out[i]), peer, i % 2));
    }
    // Posted in order per tag, waited for from the back.
    for (int tag : {1, 0}) {
      for (int i = tag; i < kMessages; i += 2) {
        requests.push_back(transport.Receive(Bytes(in[i]), peer, tag));
      }
    }
    // NOLINTNEXTLINE(modernize-loop-convert): backwards, and there are no reverse views
    for (auto request = requests.rbegin(); request != requests.rend(); ++request) {
      transport.Wait(*request, "test");
    }
    EXPECT_EQ(in, out);
  });
}

TEST(ThreadTransport, ARankMaySendToItself) {
  RunRanks(1, [](Transport& transport) {
    int out = 7, in = 0;
    const Transport::Request send = transport.Send(Bytes(out), 0, 3);
    transport.Wait(transport.Receive(Bytes(in), 0, 3), "test");
    transport.Wait(send, "test");
    EXPECT_EQ(in, 7);
  });
}

std::string NameWithPlace(int rank) { return absl::StrCat("rank ", rank, " (place ", rank, ")"); }

TEST(ThreadTransport, OtherThreadsMayAskForTheWaitInProgress) {
  std::atomic<bool> answered{false};
  RunRanks(2, [&](Transport& transport) {
    transport.SetWaitPolicy({.name_of = NameWithPlace});
    const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    int value = 5;
    if (transport.rank() == 0) {
      while (!answered) nap();
      transport.Wait(transport.Send(Bytes(value), 1, 0), "send");
      return;
    }
    std::string answer;
    std::jthread other([&] {
      for (; answer.empty(); nap()) answer = transport.WaitInProgress(0.02);
      EXPECT_EQ(transport.WaitInProgress(60), "") << "no wait has lasted that long";
      answered = true;
    });
    const ActivityScope doing("step", 4);
    transport.Wait(transport.Receive(Bytes(value), 0, 0), "broadcast over data");
    other.join();
    EXPECT_EQ(answer,
              "rank 1 (place 1) was waiting in broadcast over data for rank 0 (place 0) (during "
              "step 4)");
    EXPECT_EQ(transport.WaitInProgress(0), "") << "nobody waits any more";
  });
}

class ThreadTransportDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ThreadTransportDeathTest, ATimeoutNamesWhoWaitsForWhomInWhat) {
  const auto wait_for_nobody = [] {
    RunRanks(3, [](Transport& transport) {
      if (transport.rank() != 1) return;
      transport.SetWaitPolicy({.timeout_seconds = 0.25, .name_of = NameWithPlace});
      const ActivityScope doing("forward of micro-batch", 3);
      int value = 0;
      transport.Wait(transport.Receive(Bytes(value), 2, 0), "all-reduce over tensor");
    });
  };
  EXPECT_EXIT(
      wait_for_nobody(), ::testing::ExitedWithCode(1),
      "rank 1 \\(place 1\\) waited 0.25 s in all-reduce over tensor for rank 2 \\(place 2\\) "
      "\\(during forward of micro-batch 3\\)");
}

TEST_F(ThreadTransportDeathTest, AMessageOfAnotherSizeDies) {
  const auto mismatch = [] {
    RunRanks(2, [](Transport& transport) {
      int value = 0;
      if (transport.rank() == 0) {
        transport.Wait(transport.Send(Bytes(value).subspan(1), 1, 0), "send");
      } else {
        transport.Wait(transport.Receive(Bytes(value), 0, 0), "broadcast over data");
      }
    });
  };
  EXPECT_EXIT(mismatch(), ::testing::ExitedWithCode(1),
              "rank 1 expected 4 bytes in broadcast over data from rank 0 and got 3");
}

}  // namespace
}  // namespace twinstream
