#include "models/transformer_stage.h"

#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "launch/trainer.h"
#include "parallel/thread_transport.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

struct Result {
  double loss;
  std::map<std::string, std::vector<float>> gradients;
};

// The loss and gradients of one update from the seed's weights, those that `zeroed` names being 0.
Result Gradients(ModelSpec::Residual residual, absl::FunctionRef<bool(const std::string&)> zeroed) {
  // norm_eps so small that a norm of something normed changes nothing.
  JobSpec job = *ParseJobSpec(
      "model { layers: 3 hidden: 32 heads: 4 ffn: 48 vocabulary: 64 sequence: 16 norm_eps: 1e-12 }"
      "data { train { path: 'a.bin' } } train { steps: 8 microbatch: 2 z_loss: 0.01 }",
      "job.textproto");
  job.mutable_model()->set_residual(residual);
  job = ResolveJobSpec(job, 1);
  const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  ThreadHub hub(1);
  ThreadTransport transport(hub, 0);
  Trainer trainer(job, Purpose::kTraining, 1, *device, transport);
  trainer.Materialize();
  trainer.InitializeWeights();
  for (const Piece& piece : trainer.parameters().ValuePieces()) {
    if (zeroed(piece.name)) device->ops().Zero(piece.data);
  }
  HostBatch& batch = trainer.batch();
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = static_cast<int32_t>(i * 7 % 64);
    batch.targets[i] = static_cast<int32_t>(i * 13 % 64);
  }
  Result result = {.loss = trainer.Step(1, 0, false).loss};
  for (const Piece& piece : trainer.optimizer().GradientPieces()) {
    std::vector<float>& gradient = result.gradients[piece.name];
    const float* values = piece.data.As<float>();
    gradient.insert(gradient.end(), values, values + piece.data.elements());
  }
  return result;
}

// With N_x and N_xf zero, what is left is a pre-norm network whose norm is N_in of N_y.
TEST(TransformerStage, PostPreWithoutItsXStreamIsPreNorm) {
  const Result siamese = Gradients(ModelSpec::SIAMESE_POST_PRE, [](const std::string& name) {
    return absl::EndsWith(name, ".x_norm.weight");
  });
  const Result pre = Gradients(ModelSpec::PRE_NORM, [](const std::string&) { return false; });
  EXPECT_NEAR(siamese.loss, pre.loss, 1e-5);
  int compared = 0;
  for (const auto& [name, expected] : pre.gradients) {
    if (absl::EndsWith(name, "norm.weight")) continue;  // other norms, other gradients
    const std::vector<float>& actual = siamese.gradients.at(name);
    ASSERT_EQ(actual.size(), expected.size()) << name;
    float largest = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = std::max(largest, std::abs(expected[i]));
      difference = std::max(difference, std::abs(actual[i] - expected[i]));
    }
    EXPECT_GT(largest, 0) << name;
    EXPECT_LE(difference, 1e-4 * largest) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 2 + 4 * 3);
}

// RESI_DUAL and the like aside, both streams must matter: the same zeros change hybrid-pre.
TEST(TransformerStage, TheXStreamMattersWhereItsNormsAreNotZero) {
  const auto none = [](const std::string&) { return false; };
  const double pre = Gradients(ModelSpec::PRE_NORM, none).loss;
  for (ModelSpec::Residual scheme :
       {ModelSpec::SIAMESE_POST_PRE, ModelSpec::SIAMESE_HYBRID_PRE, ModelSpec::POST_NORM}) {
    EXPECT_GT(std::abs(Gradients(scheme, none).loss - pre), 1e-3);
  }
}

}  // namespace
}  // namespace twinstream
