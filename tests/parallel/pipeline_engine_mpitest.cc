// The claims of pipeline_engine_test between processes: every schedule, with messages beyond MPI's
// eager limit and sends that are all synchronous.
#include "gtest/gtest.h"
#include "launch/runtime.h"
#include "parallel/mpi_transport.h"
#include "tests/testing/pipeline_checks.h"

int main(int argc, char** argv) {
  namespace checks = twinstream::testing;
  twinstream::Runtime runtime(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  const std::unique_ptr<twinstream::Transport> transport =
      twinstream::MakeMpiTransport({.synchronous_sends = true});
  transport->SetWaitPolicy({.timeout_seconds = 60});
  checks::ForEachPipeline(transport->size(), [&](twinstream::ParallelSpec::Schedule schedule,
                                                 const twinstream::PipelineShape& shape) {
    checks::CheckPipeline(schedule, shape, checks::RunChain(shape), *transport);
  });
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}
