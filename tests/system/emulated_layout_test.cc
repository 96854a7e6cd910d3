// The reference's losses, gradients, norms and updates by the CUDA kernels as the CPU emulates
// them, one axis of a layout at a time; between ranks tensors go by way of the host.
#include "core/cuda/emulated/device.h"
#include "gtest/gtest.h"
#include "tests/testing/golden_run.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

void ExpectReference(const std::string& file, const std::vector<Layout>& layouts) {
  const GoldenRun golden(file);
  for (const Layout& layout : layouts) {
    const ParallelSpec parallel = SpecOf(layout);
    const int64_t microbatch = golden.golden().Integer("batch") / layout.data;
    const JobSpec job = golden.Job(parallel, microbatch, GridShape::From(parallel).ranks());
    SCOPED_TRACE(LayoutName(job));
    const Deviations d = Compare(
        golden.Train(job, [](int /*rank*/) { return MakeEmulatedDevice(); }), golden.golden());
    EXPECT_LE(d.loss, kLossLimit);
    EXPECT_LE(d.norm, kNormLimit);
    EXPECT_LE(d.gradient, kGradientLimit);
    EXPECT_LE(d.weight, kWeightLimit);
  }
}

TEST(EmulatedLayout, OfADenseModelGivesTheReference) {
  ExpectReference("lm_siamese_hybrid_pre",
                  {Layout{}, Layout{.tensor = 2, .sequence_parallel = true}, Layout{.pipeline = 2},
                   Layout{.data = 2}, Layout{.context = 2}});
}

TEST(EmulatedLayout, OfAMixtureOfExpertsGivesTheReference) {
  ExpectReference("moe_siamese_hybrid_pre", {Layout{.data = 2, .expert = 2}});
}

}  // namespace
}  // namespace twinstream::testing
