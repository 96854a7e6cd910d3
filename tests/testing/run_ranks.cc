#include "tests/testing/run_ranks.h"

#include <thread>
#include <vector>

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

}  // namespace twinstream::testing
