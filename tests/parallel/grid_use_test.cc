#include "parallel/grid_use.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

JobSpec JobOn(int tensor, int context, int pipeline, int virtual_stages) {
  JobSpec job;
  job.mutable_parallel()->set_tensor(tensor);
  job.mutable_parallel()->set_context(context);
  job.mutable_parallel()->set_pipeline(pipeline);
  job.mutable_parallel()->set_virtual_stages(virtual_stages);
  return job;
}

TEST(UseOfPasses, TrainingSumsOverTensorRanksAndSendsToNeighbours) {
  const GridUse use = UseOfPasses(JobOn(2, 2, 3, 1), Gradients::kAllocated);
  EXPECT_THAT(use, UnorderedElementsAre(Key(GridGroup::kTensor), Key(GridGroup::kContext),
                                        Key(GridGroup::kPipeline)));
  EXPECT_EQ(use.at(GridGroup::kTensor), GroupUse{.work = GroupWork::kCollectives});
  const GroupUse& pipeline = use.at(GridGroup::kPipeline);
  EXPECT_EQ(pipeline.work, GroupWork::kMessages);
  EXPECT_THAT(
      pipeline.routes,
      UnorderedElementsAre(Route{Channel::kActivation, 0, 1}, Route{Channel::kActivation, 1, 2},
                           Route{Channel::kGradient, 1, 0}, Route{Channel::kGradient, 2, 1}));
  const GroupUse& ring = use.at(GridGroup::kContext);
  EXPECT_EQ(ring.work, GroupWork::kMessages);
  EXPECT_THAT(ring.routes,
              UnorderedElementsAre(Route{Channel::kKeyValue, 0, 1}, Route{Channel::kKeyValue, 1, 0},
                                   Route{Channel::kKeyValueGradient, 0, 1},
                                   Route{Channel::kKeyValueGradient, 1, 0}));
}

TEST(UseOfPasses, OnlyVirtualStagesJoinThePipelinesEnds) {
  EXPECT_THAT(
      UseOfPasses(JobOn(1, 1, 3, 2), Gradients::kAllocated).at(GridGroup::kPipeline).routes,
      UnorderedElementsAre(Route{Channel::kActivation, 0, 1}, Route{Channel::kActivation, 1, 2},
                           Route{Channel::kActivation, 2, 0}, Route{Channel::kGradient, 1, 0},
                           Route{Channel::kGradient, 2, 1}, Route{Channel::kGradient, 0, 2}));
}

TEST(UseOfPasses, InferenceHasNoGradientsButSharesLogits) {
  const GridUse use = UseOfPasses(JobOn(1, 2, 2, 1), Gradients::kNone);
  EXPECT_EQ(use.at(GridGroup::kPipeline),
            (GroupUse{GroupWork::kCollectives, {{Channel::kActivation, 0, 1}}}));
  EXPECT_EQ(use.at(GridGroup::kContext),
            (GroupUse{GroupWork::kCollectives,
                      {{Channel::kKeyValue, 0, 1}, {Channel::kKeyValue, 1, 0}}}));
}

TEST(UseOfPasses, OneRankSendsNothing) {
  for (int virtual_stages : {1, 2}) {
    for (const auto& [group, use] :
         UseOfPasses(JobOn(1, 1, 1, virtual_stages), Gradients::kAllocated)) {
      EXPECT_THAT(use.routes, IsEmpty()) << NameOf(group);
    }
  }
}

TEST(UseOfPasses, OnlyMixturesOfExpertsExchangeTokens) {
  JobSpec job = JobOn(1, 1, 1, 1);
  job.mutable_model()->mutable_moe()->set_experts(4);
  const GridUse use = UseOfPasses(job, Gradients::kAllocated);
  EXPECT_EQ(use.at(GridGroup::kExperts), GroupUse{.work = GroupWork::kCollectives});
  EXPECT_EQ(use.at(GridGroup::kReplicas), GroupUse{.work = GroupWork::kCollectives});
  EXPECT_EQ(use.count(GridGroup::kExpertReplicas), 0);
}

ParameterSpec Matrix(const std::string& name) {
  const Shape shape = {2, 2};
  return {.name = name, .global = shape, .boxes = {{.box = Box::Whole(shape)}}};
}

TEST(UseOfUpdates, IsWhatTheParametersSay) {
  ParameterStore store(DType::kBF16);
  store.Declare(Matrix("plain"));
  EXPECT_EQ(UseOfUpdates(store, {}, Gradients::kAllocated),
            (GridUse{{GridGroup::kReplicas, {.work = GroupWork::kRoundedSums}}}));
  ParameterSpec tied = Matrix("tied"), head_norm = Matrix("norm"), expert = Matrix("expert");
  tied.sum_over_stages = true;
  head_norm.sum_over_tensor = true;
  expert.replicas = GridGroup::kExpertReplicas;
  expert.float32 = true;
  for (const ParameterSpec& spec : {tied, head_norm, expert}) store.Declare(spec);
  EXPECT_EQ(
      UseOfUpdates(store, {.pipeline = 3}, Gradients::kAllocated),
      (GridUse{{GridGroup::kTensor, {.work = GroupWork::kCollectives}},
               {GridGroup::kPipeline, {.routes = {{Channel::kTied, 0, 2}, {Channel::kTied, 2, 0}}}},
               {GridGroup::kReplicas, {.work = GroupWork::kRoundedSums}},
               {GridGroup::kExpertReplicas, {.work = GroupWork::kCollectives}}}));
  for (const auto& [group, use] : UseOfUpdates(store, {.pipeline = 3}, Gradients::kNone)) {
    EXPECT_EQ(use, GroupUse()) << NameOf(group);
  }
}

}  // namespace
}  // namespace twinstream
