// The reference's losses, gradients, norms and updates on every legal layout of 1, 2, 3, 4 and 8
// ranks.
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_rules.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

// The short version leaves out what says little more of context ranks: several microbatches, and
// for all schemes but one more than 4 ranks.
bool Wanted(const JobSpec& job) {
  if (job.parallel().context() == 1 || Exhaustive()) return true;
  return job.train().microbatch() == 1 && (GridShape::From(job.parallel()).ranks() <= 4 ||
                                           job.model().residual() == ModelSpec::SIAMESE_HYBRID_PRE);
}

class GoldenLayoutTest : public ::testing::TestWithParam<std::string> {
 protected:
  void ExpectReference(const GoldenRun& golden, const JobSpec& job) {
    SCOPED_TRACE(LayoutName(job));
    const Deviations d = Compare(golden.Train(job), golden.golden());
    ExpectWithinLimits(d);
    worst_.loss = std::max(worst_.loss, d.loss);
    worst_.norm = std::max(worst_.norm, d.norm);
    worst_.gradient = std::max(worst_.gradient, d.gradient);
    worst_.weight = std::max(worst_.weight, d.weight);
  }

  Deviations worst_;
};

TEST_P(GoldenLayoutTest, EveryLegalLayoutGivesTheReference) {
  const GoldenRun golden(GetParam());
  int layouts = 0;
  for (int ranks : {1, 2, 3, 4, 8}) {
    for (const JobSpec& job : golden.LegalJobs(ranks)) {
      if (!Wanted(job)) continue;
      ExpectReference(golden, job);
      ++layouts;
    }
  }
  std::printf(
      "%s: %d layouts, worst differences: loss %.1e, norm %.1e, gradient %.1e, weights %.2f "
      "learning rates\n",
      GetParam().c_str(), layouts, worst_.loss, worst_.norm, worst_.gradient, worst_.weight);
  EXPECT_GT(layouts, 20);
}

TEST_P(GoldenLayoutTest, EveryScheduleGivesTheReference) {
  const GoldenRun golden(GetParam());
  const int layers = static_cast<int>(golden.golden().Integer("layers"));
  for (int pipeline : {2, 4}) {
    for (const Layout& layout : Pipelines(pipeline, layers)) {
      for (int tensor : {1, 2}) {
        ParallelSpec parallel;
        parallel.set_tensor(tensor);
        parallel.set_pipeline(pipeline);
        parallel.set_virtual_stages(layout.virtual_stages);
        parallel.set_schedule(layout.schedule);
        const JobSpec job = golden.Job(parallel, 1, tensor * pipeline);
        if (!JobProblems(job, tensor * pipeline).empty()) continue;  // too few layers or heads
        ExpectReference(golden, job);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, GoldenLayoutTest, ::testing::ValuesIn(DenseGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });

}  // namespace
}  // namespace twinstream::testing
