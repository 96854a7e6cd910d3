// The claims of host_communicator_test and thread_transport_test, between processes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "launch/runtime.h"
#include "parallel/collectives.h"
#include "parallel/communication_thread.h"
#include "parallel/mpi_transport.h"
#include "tests/testing/collective_checks.h"

namespace twinstream {
namespace {

// Messages of more than one part, in both directions at once.
void CheckMessagesOfSeveralParts() {
  const std::unique_ptr<Transport> transport = MakeMpiTransport({.largest_part = 10'000});
  const int R = transport->size(), rank = transport->rank();
  for (size_t bytes : {0, 9'999, 10'000, 10'001, 1'234'567}) {
    std::vector<std::byte> out(bytes, std::byte(rank)), in(bytes, std::byte(99));
    const Transport::Request send = transport->Send(out, (rank + 1) % R, 7);
    const Transport::Request receive =
        transport->Receive(absl::MakeSpan(in), (rank + R - 1) % R, 7);
    transport->Wait(receive, "test");
    transport->Wait(send, "test");
    EXPECT_EQ(in, std::vector<std::byte>(bytes, std::byte((rank + R - 1) % R)));
  }
}

// Ranks that wait must leave the cores to the others, however many ranks there are: without that,
// each barrier takes a time slice of the scheduler per rank.
void CheckThatWaitingRanksYield(Runtime& runtime) {
  constexpr int kMostRounds = 100, kBarriers = 50;
  constexpr double kLimit = 2e-3;                         // seconds per barrier
  double best = std::numeric_limits<double>::infinity();  // other programs take some rounds
  for (int round = 0; round < kMostRounds && best >= kLimit; ++round) {
    runtime.world().Barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kBarriers; ++i) runtime.world().Barrier();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // All ranks go by the slowest, so that they stop in the same round.
    best = std::min(best,
                    AllReduceValue(runtime.world(), seconds.count() / kBarriers, Reduction::kMax));
  }
  EXPECT_LT(best, kLimit) << "s per barrier of " << runtime.size() << " ranks";
}

// Collectives of the same ranks on two threads at once, with messages that need both sides' help to
// arrive.
void CheckTwoThreads(Transport& transport) {
  const ProcessGrid grid({.data = transport.size()}, transport);
  CommunicationThread communication(Overlap::kOn, grid.shape(), transport);
  communication.Reserve(1);
  std::vector<int32_t> own(300'000), posted(300'000);
  const auto sum = [](const ProcessGrid& over, std::vector<int32_t>& values) {
    over.data().AllReduce(Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kI32,
                                 {static_cast<int64_t>(values.size())}),
                          Reduction::kSum);
  };
  const CommunicationThread::Operation operation = [&](Range /*items*/) {
    sum(communication.grid(), posted);
  };
  for (int32_t step = 0; step < 10; ++step) {
    std::fill(own.begin(), own.end(), step);
    std::fill(posted.begin(), posted.end(), 1000 + step);
    communication.Post("a sum", operation, {});
    sum(grid, own);
    communication.WaitForAll();
    EXPECT_EQ(own, std::vector<int32_t>(own.size(), transport.size() * step));
    EXPECT_EQ(posted, std::vector<int32_t>(own.size(), transport.size() * (1000 + step)));
  }
}

// A message that nobody waits for arrives although its receiver makes no call.
void CheckThatLeftMessagesMove(Runtime& runtime) {
  Transport& transport = runtime.transport();
  const int R = transport.size(), rank = transport.rank();
  CommunicationThread communication(Overlap::kOn, {.data = R}, transport);
  std::vector<std::byte> out(8 << 20, std::byte(rank)), in(out.size(), std::byte(99));
  const Transport::Request receive = transport.Receive(absl::MakeSpan(in), (rank + R - 1) % R, 7);
  const Transport::Request send = transport.Send(out, (rank + 1) % R, 7);
  communication.KeepMoving();
  const std::atomic_ref last(in.back());
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [&] { return std::chrono::steady_clock::now() - start; };
  while (R > 1 && last.load() == std::byte(99) && waited() < std::chrono::seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(waited(), std::chrono::seconds(20)) << "without a call nothing moved";
  transport.Wait(receive, "test");
  transport.Wait(send, "test");
}

void CheckPlace(Runtime& runtime) {
  EXPECT_EQ(runtime.local_size(), runtime.size());  // the test runs on one host
  EXPECT_EQ(runtime.local_rank(), runtime.rank());
  EXPECT_FALSE(runtime.hostname().empty());
  EXPECT_FALSE(runtime.stop_requested());
}

}  // namespace
}  // namespace twinstream

int main(int argc, char** argv) {
  twinstream::Runtime runtime(argc, argv);
  runtime.SetTimeout(60);
  ::testing::InitGoogleTest(&argc, argv);
  twinstream::CheckPlace(runtime);
  twinstream::testing::CheckCollectives(runtime.transport());
  twinstream::CheckMessagesOfSeveralParts();
  twinstream::CheckTwoThreads(runtime.transport());
  twinstream::CheckThatLeftMessagesMove(runtime);
  twinstream::CheckThatWaitingRanksYield(runtime);
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
