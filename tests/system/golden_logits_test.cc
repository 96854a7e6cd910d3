// Logits of every position against the reference, on one rank and on ranks that share vocabulary,
// heads, tokens and layers.
#include <algorithm>
#include <cmath>

#include "gtest/gtest.h"
#include "launch/trainer.h"
#include "parallel/box.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

constexpr double kLimit = 1e-5;  // of the largest logit

class GoldenLogitsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenLogitsTest, EveryPositionGivesTheReference) {
  const GoldenRun golden(GetParam());
  const std::vector<double> expected = golden.golden().Doubles("logits");  // [B, T, V]
  const Shape shape = golden.golden().ShapeOf("logits");
  const int64_t B = shape[0], T = shape[1], V = shape[2];
  const std::vector<int32_t> windows = golden.golden().Tokens();
  std::vector<int32_t> tokens;  // [B * T]: the inputs of the first step's windows of T + 1
  for (int64_t i = 0; i < B * (T + 1); ++i) {
    if (i % (T + 1) < T) tokens.push_back(windows[static_cast<size_t>(i)]);
  }
  double largest = 0;
  for (double logit : expected) largest = std::max(largest, std::abs(logit));

  for (const GridShape& grid : {GridShape{},
                                {.tensor = 4},
                                {.tensor = 2, .pipeline = 2},
                                {.context = 4},
                                {.tensor = 2, .context = 2, .pipeline = 2}}) {
    ParallelSpec parallel;
    parallel.set_tensor(grid.tensor);
    parallel.set_context(grid.context);
    parallel.set_pipeline(grid.pipeline);
    const JobSpec job = golden.Job(parallel, B, grid.ranks());
    RunRanks(grid.ranks(), [&](Transport& transport) {
      const std::unique_ptr<Device> device = *MakeDevice("cpu");
      Trainer trainer(job, Purpose::kInference, 1, *device, transport);
      trainer.Materialize();
      golden.FillWeights(trainer, *device);
      for (int64_t row = 0; row < B * T; ++row) {
        const std::vector<float> logits = trainer.NextTokenLogits(tokens, row);
        for (int64_t v = 0; v < V; ++v) {
          ASSERT_NEAR(logits[static_cast<size_t>(v)], expected[static_cast<size_t>(row * V + v)],
                      kLimit * largest)
              << LayoutName(job) << " row " << row << " token " << v;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, GoldenLogitsTest, ::testing::ValuesIn(DenseGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });
INSTANTIATE_TEST_SUITE_P(Moe, GoldenLogitsTest, ::testing::ValuesIn(MoeGoldenFiles()),
                         [](const ::testing::TestParamInfo<std::string>& file) {
                           return file.param;
                         });

}  // namespace
}  // namespace twinstream::testing
