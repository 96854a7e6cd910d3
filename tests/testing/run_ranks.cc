#include "tests/testing/run_ranks.h"

#include <numeric>
#include <thread>

#include "parallel/thread_transport.h"

namespace twinstream::testing {

void RunRanks(int ranks, absl::FunctionRef<void(Transport& transport)> body) {
  ThreadHub hub(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&hub, &body, rank] {
      ThreadTransport transport(hub, rank);
      transport.SetWaitPolicy({.timeout_seconds = 60});
      body(transport);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<int> AllRanks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace twinstream::testing
