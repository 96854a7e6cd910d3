#include "models/residual_plan.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
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

std::vector<ModelSpec::Residual> AllSchemes() {
  std::vector<ModelSpec::Residual> schemes;
  const google::protobuf::EnumDescriptor& type = *ModelSpec::Residual_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    schemes.push_back(static_cast<ModelSpec::Residual>(type.value(i)->number()));
  }
  return schemes;
}

TEST(ResidualPlan, EverySchemeIsAcceptedAndHasAPlan) {
  for (ModelSpec::Residual scheme : AllSchemes()) {
    EXPECT_THAT(JobProblems(JobOf(scheme), 1), ::testing::IsEmpty());
    EXPECT_EQ(MakeResidualPlan(JobOf(scheme).model()).blocks.size(), 2 * kLayers);
  }
}

// The golden matrices walk the files: so every scheme of job.proto is compared with its reference.
TEST(ResidualPlan, EverySchemeHasAGoldenFile) {
  std::set<std::string> schemes;
  for (const std::string& name : testing::DenseGoldenFiles()) {
    schemes.insert(testing::Golden(name).Metadata("scheme"));
  }
  for (ModelSpec::Residual scheme : AllSchemes()) {
    EXPECT_EQ(schemes.count(ModelSpec::Residual_Name(scheme)), 1u)
        << ModelSpec::Residual_Name(scheme);
  }
}

TEST(ResidualPlan, MixLnIsPostNormInTheFirstQuarterOfTheLayersRoundedUp) {
  for (const auto& [layers, post_norm] :
       std::map<int, int>{{1, 1}, {3, 1}, {4, 1}, {5, 2}, {8, 2}}) {
    JobSpec job = JobOf(ModelSpec::MIX_LN);
    job.mutable_model()->set_layers(layers);
    const ResidualPlan plan = MakeResidualPlan(job.model());
    for (int b = 1; b < 2 * layers; ++b) {
      EXPECT_EQ(plan.blocks[static_cast<size_t>(b)].read.read.base_norm, b <= 2 * post_norm);
    }
    EXPECT_EQ(plan.final.read.base_norm, post_norm == layers);
  }
}

TEST(ResidualPlan, SiameseGainIsOneOverTheRootOfTwiceTheLayer) {
  for (ModelSpec::Residual scheme : {ModelSpec::SIAMESE_POST_PRE, ModelSpec::SIAMESE_HYBRID_PRE}) {
    const ResidualPlan plan = MakeResidualPlan(JobOf(scheme).model());
    EXPECT_EQ(plan.streams, 2);
    for (size_t b = 0; b < plan.blocks.size(); ++b) {
      const float gains[kLayers] = {0.70710678F, 0.5F, 0.40824829F};
      EXPECT_FLOAT_EQ(plan.blocks[b].write.write.x_gain, gains[b / 2]);
    }
  }
}

}  // namespace
}  // namespace twinstream
