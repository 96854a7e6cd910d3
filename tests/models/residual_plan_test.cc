#include "models/residual_plan.h"

#include <set>

#include "gtest/gtest.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "tests/testing/golden.h"
#include "tests/testing/golden_run.h"

namespace twinstream {
namespace {

constexpr int kLayers = 3;

JobSpec JobOf(ModelSpec::Residual residual) {
  absl::StatusOr<JobSpec> job = ParseJobSpec(
      "model { layers: 3 hidden: 32 heads: 4 ffn: 48 vocabulary: 64 sequence: 16 }"
      "data { train { path: 'a.bin' } } train { steps: 8 }",
      "job.textproto");
  job->mutable_model()->set_residual(residual);
  return ResolveJobSpec(*job, 1);
}

// Calls f(scheme, whether validate accepts it) for every scheme of job.proto.
template <typename F>
void ForEachScheme(F f) {
  const google::protobuf::EnumDescriptor& type = *ModelSpec::Residual_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    const auto scheme = static_cast<ModelSpec::Residual>(type.value(i)->number());
    f(scheme, JobProblems(JobOf(scheme), 1).empty());
  }
}

TEST(ResidualPlan, EverySchemeHasAPlanOrIsRefused) {
  ForEachScheme([](ModelSpec::Residual scheme, bool accepted) {
    if (accepted) {
      EXPECT_EQ(MakeResidualPlan(JobOf(scheme).model()).blocks.size(), 2 * kLayers);
    } else {
      EXPECT_DEATH(MakeResidualPlan(JobOf(scheme).model()), "has no plan");
    }
  });
}

TEST(ResidualPlan, EveryAcceptedSchemeHasAGoldenFile) {
  std::set<std::string> schemes;
  for (const std::string& name : testing::DenseGoldenFiles()) {
    schemes.insert(testing::Golden(name).Metadata("scheme"));
  }
  ForEachScheme([&](ModelSpec::Residual scheme, bool accepted) {
    EXPECT_EQ(schemes.count(ModelSpec::Residual_Name(scheme)), accepted ? 1u : 0u)
        << ModelSpec::Residual_Name(scheme);
  });
}

TEST(ResidualPlan, SiameseGainIsOneOverTheRootOfTwiceTheLayer) {
  for (ModelSpec::Residual scheme : {ModelSpec::SIAMESE_POST_PRE, ModelSpec::SIAMESE_HYBRID_PRE}) {
    const ResidualPlan plan = MakeResidualPlan(JobOf(scheme).model());
    EXPECT_EQ(plan.streams, 2);
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      const float gains[kLayers] = {0.70710678F, 0.5F, 0.40824829F};
      EXPECT_FLOAT_EQ(plan.blocks[b].write.x_gain, gains[b / 2]);
    }
  }
}

}  // namespace
}  // namespace twinstream
