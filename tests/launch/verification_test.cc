#include "launch/verification.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/dropping_transport.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The rows that are outside, "name of the row: note", of three updates in which rank 1 has this
// fault; then the message, unless all is well.
std::vector<std::string> RowsOutside(const JobSpec& job, const DroppingTransport::Fault& fault) {
  const TinyData data(job);
  std::vector<std::string> outside;
  RunRanks(GridShape::From(job.parallel()).ranks(), [&](Transport& transport) {
    DroppingTransport dropping(transport,
                               transport.rank() == 1 ? fault : DroppingTransport::Fault());
    const std::unique_ptr<Device> device = *MakeDevice("cpu", {.threads = 1});
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, dropping);
    trainer.Materialize();
    trainer.InitializeWeights();
    const Verification verification =
        VerifyLayout(trainer.grid().world(), trainer, data.dataset(), *device, 3);
    if (transport.rank() == 1) {
      EXPECT_TRUE(fault.operation.empty() || dropping.seen() > fault.first) << fault.operation;
    }
    if (transport.rank() != 0) return;
    for (const VerificationRow& row : verification.rows) {
      if (!row.ok()) outside.push_back(row.what + ": " + row.note);
    }
    if (!verification.ok()) outside.push_back(OutsideMessage(job, verification));
  });
  return outside;
}

TEST(Verification, LayoutsWithoutFaultsAreInside) {
  std::vector<Layout> layouts = {{.tensor = 2, .sequence_parallel = true},
                                 {.data = 3},
                                 {.context = 2},
                                 {.tensor = 2, .pipeline = 2}};
  for (const Layout& pipeline : Pipelines(2, 4)) layouts.push_back(pipeline);
  for (const Layout& layout : layouts) {
    EXPECT_THAT(RowsOutside(OnLayout(TinyJob(), layout), {}), IsEmpty()) << NameOf(layout);
  }
}

TEST(Verification, OnlyRoutersMayTieAndOnlyBf16RoundsMuch) {
  JobSpec job = TinyJob();
  Verification outside;
  outside.rows = {{.what = "loss", .limit = 0, .difference = 1}};
  EXPECT_THAT(OutsideMessage(job, outside), ::testing::EndsWith("see the rows that are OUTSIDE"));
  job.mutable_train()->set_precision(TrainSpec::BF16);
  EXPECT_THAT(OutsideMessage(job, outside), ::testing::ContainsRegex("rounding.*precision FP32"));
  job.mutable_train()->set_precision(TrainSpec::FP32);
  job.mutable_model()->mutable_moe()->set_experts(4);
  EXPECT_THAT(OutsideMessage(job, outside),
              ::testing::ContainsRegex("near-ties of the router.*precision FP32.*train.seed"));
  outside.first_update_ok = true;
  EXPECT_THAT(OutsideMessage(job, outside),
              ::testing::ContainsRegex("peak_lr.*near-ties of the router"));
}

TEST(Verification, ExpertsAreComparedWithOneRankThatTakesAsMuchAtATime) {
  JobSpec job = TinyJob();
  job.mutable_model()->mutable_moe()->set_experts(4);
  job.mutable_model()->mutable_moe()->set_top_k(2);
  EXPECT_THAT(RowsOutside(OnLayout(job, {.data = 2, .expert = 2}), {}), IsEmpty());
}

// So few tokens and so large steps that each update begins far from where the one before did.
TEST(Verification, AHighLearningRateIsNotTheLayoutsFault) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(4);
  job.mutable_train()->set_global_batch(2);
  job.mutable_optimizer()->set_peak_lr(3);
  job.mutable_optimizer()->set_schedule(OptimizerSpec::CONSTANT);
  EXPECT_THAT(RowsOutside(OnLayout(job, {.tensor = 2}), {}),
              ::testing::ElementsAre("loss: first in update 2", "gradient norm: first in update 2",
                                     HasSubstr("a smaller optimizer.peak_lr")));
}

TEST(Verification, AJobWithoutNumbersIsNotTheLayoutsFault) {
  JobSpec job = TinyJob();
  job.mutable_optimizer()->set_peak_lr(1e30);
  EXPECT_THAT(RowsOutside(OnLayout(job, {.tensor = 2}), {}),
              ::testing::ElementsAre(
                  ::testing::ContainsRegex("update 2 are no numbers.*smaller optimizer.peak_lr")));
  job.mutable_model()->mutable_init()->set_method(InitSpec::NORMAL);
  job.mutable_model()->mutable_init()->set_std(1e30);
  EXPECT_THAT(RowsOutside(OnLayout(job, {.tensor = 2}), {}),
              ::testing::ElementsAre(
                  ::testing::ContainsRegex("update 1 are no numbers.*smaller model.init.std")));
}

// So many that twice their memory is there.
TEST(Verification, AsManyLayersAreComparedAsFit) {
  JobSpec job = TinyJob();
  job.mutable_model()->set_layers(7);
  job = OnLayout(job, {.pipeline = 2});
  const std::unique_ptr<Device> device = *MakeDevice("cpu", {.threads = 1});
  EXPECT_EQ(LayersToVerify(job, 0, *device), 7);
  for (int layers = 2; layers <= 7; ++layers) {
    JobSpec smaller = job;
    smaller.mutable_model()->set_layers(layers);
    const int64_t bytes = 2 * ReferenceMemory(smaller, *device).total();
    EXPECT_EQ(LayersToVerify(job, bytes + 2, *device), layers);
    EXPECT_EQ(LayersToVerify(job, bytes, *device), layers == 2 ? 0 : layers - 1);
  }
}

struct Planted {
  Layout layout;
  DroppingTransport::Fault fault;
  std::string row;  // that must be outside, with what it must name
};

// One dropped message of one rank in the first update (and every gather: a later one repairs it).
TEST(Verification, ADroppedMessageIsCaughtAndNamed) {
  const Layout tensor = {.tensor = 2}, sharded = {.tensor = 2, .sequence_parallel = true};
  const Planted planted[] = {
      // The first sum is the embedding's over the parts of the vocabulary.
      {tensor, {"all-reduce over tensor", 0, 0}, "loss: "},
      {tensor, {"all-reduce over tensor", 1, 1}, "worst parameter gradient: "},
      {sharded, {"all-gather over tensor", 1, 1}, "loss: "},
      {{.data = 2}, {"reduce-scatter over replicas", 0, 0}, "worst parameter gradient: "},
      {{.data = 2}, {"all-gather over replicas", 0, 1000}, "replicas differ (boxes): "},
      {{.pipeline = 2}, {"receive of an activation over pipeline", 0, 0}, "loss: "},
      {{.context = 2}, {"receive of keys and values over context", 0, 0}, "loss: "},
  };
  for (const auto& [layout, fault, row] : planted) {
    const std::vector<std::string> outside = RowsOutside(OnLayout(TinyJob(), layout), fault);
    std::printf("%s of %s: %s\n", std::string(fault.operation).c_str(), NameOf(layout).c_str(),
                absl::StrJoin(outside, "; ").c_str());
    EXPECT_THAT(outside, Contains(HasSubstr(row))) << fault.operation;
  }
}

TEST(Verification, ADroppedGradientNamesItsTensor) {
  const JobSpec job = OnLayout(TinyJob(), {.data = 2});
  const std::vector<std::string> outside = RowsOutside(job, {"reduce-scatter over replicas", 0, 0});
  EXPECT_THAT(outside, Contains("worst parameter gradient: head.weight"));
}

}  // namespace
}  // namespace twinstream::testing
