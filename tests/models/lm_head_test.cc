#include "models/lm_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/device.h"
#include "parallel/process_grid.h"
#include "tests/testing/near.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kBatch = 2, kSequence = 450, kTokens = kBatch * kSequence, kHidden = 8;
constexpr float kZLoss = 0.1F, kGradientScale = 0.5F;

struct Case {
  int ranks;
  int64_t vocabulary;
  DType dtype;
};

std::string Name(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrFormat("Tensor%dV%d%s", info.param.ranks, info.param.vocabulary,
                         NameOf(info.param.dtype));
}

struct Inputs {
  std::vector<float> h, weight;
  std::vector<int32_t> targets;  // every seventh: none
};

struct Results {
  double cross_entropy = 0, lse_squares = 0;
  std::vector<double> dh, dweight;
};

// In plain loops: softmax over the whole row of logits.
Results Reference(const Inputs& inputs, int64_t V) {
  Results results;
  results.dh.resize(inputs.h.size());
  results.dweight.resize(inputs.weight.size());
  std::vector<double> logits(static_cast<size_t>(V));
  for (size_t n = 0; n < kTokens; ++n) {
    if (inputs.targets[n] < 0) continue;
    const float* const h = &inputs.h[n * kHidden];
    double sum = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      logits[v] = 0;
      for (size_t c = 0; c < kHidden; ++c) {
        logits[v] += double{h[c]} * inputs.weight[v * kHidden + c];
      }
      sum += std::exp(logits[v]);
    }
    const double lse = std::log(sum);
    const auto target = static_cast<size_t>(inputs.targets[n]);
    results.cross_entropy += lse - logits[target];
    results.lse_squares += lse * lse;
    for (size_t v = 0; v < logits.size(); ++v) {
      const double gradient =
          kGradientScale *
          (std::exp(logits[v] - lse) * (1 + 2 * double{kZLoss} * lse) - (v == target ? 1 : 0));
      for (size_t c = 0; c < kHidden; ++c) {
        results.dh[n * kHidden + c] += gradient * inputs.weight[v * kHidden + c];
        results.dweight[v * kHidden + c] += gradient * h[c];
      }
    }
  }
  return results;
}

struct Outputs {
  std::vector<double> dh = std::vector<double>(kTokens * kHidden);  // sum of the ranks' addends
  std::vector<float> dweight;
};

// One rank's part; `outputs` is put together by all.
void RunRank(const Case& test, const Inputs& inputs, Transport& transport, std::mutex& mutex,
             const Results& expected, Outputs& outputs) {
  const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  ProcessGrid grid({.tensor = test.ranks}, transport);
  const TensorRegion region(grid.tensor(), /*shard_tokens=*/false);
  const ExpertRegion experts = ExpertRegion::Alone();
  ParameterStore parameters(test.dtype);
  ModelContext context = {.model = {},
                          .batch = kBatch,
                          .device = *device,
                          .ops = device->ops(),
                          .region = region,
                          .experts = experts,
                          .parameters = parameters,
                          .activation = test.dtype};
  context.model.set_sequence(kSequence);
  context.model.set_hidden(kHidden);
  context.model.set_vocabulary(test.vocabulary);
  Parameter& weight = DeclareHead(context);
  parameters.Materialize(*device, Gradients::kAllocated);
  const int64_t first = weight.spec.boxes[0].box.begin[0] * kHidden;
  CopyInRounded(
      *device, weight.value,
      absl::MakeConstSpan(inputs.weight)
          .subspan(static_cast<size_t>(first), static_cast<size_t>(weight.value.elements())));
  const LmHead head(context, weight);
  Scratch scratch(*device, head.ScratchBytes());
  context.scratch = &scratch;

  std::vector<float> h = inputs.h;
  std::vector<int32_t> targets = inputs.targets;
  std::vector<double> sums(2);
  const Tensor target_tensor(reinterpret_cast<std::byte*>(targets.data()), DType::kI32, {kTokens});
  const Tensor sum_tensor(reinterpret_cast<std::byte*>(sums.data()), DType::kF64, {2});
  {
    const Lent rows(h, {kTokens, kHidden}, test.dtype);
    head.Loss(rows, target_tensor, sum_tensor);
    head.LossAndGradient(rows, target_tensor, sum_tensor, kZLoss, kGradientScale);
  }
  EXPECT_EQ(scratch.mark(), 0);
  EXPECT_NEAR(sums[0] / 2, expected.cross_entropy, 1e-6 * expected.cross_entropy);
  EXPECT_NEAR(sums[1] / 2, expected.lse_squares, 1e-6 * expected.lse_squares);

  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < h.size(); ++i) outputs.dh[i] += h[i];
  device->CopyOut(&outputs.dweight[static_cast<size_t>(first)], weight.gradient);
}

class LmHeadTest : public ::testing::TestWithParam<Case> {};

// Several blocks of rows and several panels of columns.
TEST_P(LmHeadTest, EqualsTheDoubleReference) {
  const Case& test = GetParam();
  Inputs inputs = {.h = RandomFloats(kTokens * kHidden, 1, test.dtype),
                   .weight = RandomFloats(test.vocabulary * kHidden, 2, test.dtype)};
  for (int64_t n = 0; n < kTokens; ++n) {
    inputs.targets.push_back(n % 7 == 0 ? -1 : static_cast<int32_t>(n * 997 % test.vocabulary));
  }
  const Results expected = Reference(inputs, test.vocabulary);
  Outputs outputs;
  outputs.dweight.resize(inputs.weight.size(), NAN);
  std::mutex mutex;
  RunRanks(test.ranks, [&](Transport& transport) {
    RunRank(test, inputs, transport, mutex, expected, outputs);
  });
  const std::vector<float> dh(outputs.dh.begin(), outputs.dh.end());
  // The logits' gradient is rounded, and dh once more, on every rank.
  EXPECT_LT(RelativeError(dh, expected.dh), Tolerance(test.dtype, test.vocabulary, 2));
  EXPECT_LT(RelativeError(outputs.dweight, expected.dweight), Tolerance(test.dtype, kTokens));
}

INSTANTIATE_TEST_SUITE_P(Layouts, LmHeadTest,
                         ::testing::Values(Case{1, 2500, DType::kF32}, Case{2, 2500, DType::kF32},
                                           Case{3, 2500, DType::kF32}, Case{1, 1536, DType::kF32},
                                           Case{2, 2501, DType::kBF16}, Case{1, 7, DType::kF32},
                                           Case{3, 2, DType::kF32}),
                         Name);

TEST(CutLogits, OnTheHostPanelsFitIntoCaches) {
  const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  const LogitPanels cut = CutLogits(*device, 4096, 50304);
  EXPECT_EQ(cut.rows, 704);  // six blocks, in whole tiles
  EXPECT_EQ(cut.panels, 51);
  EXPECT_LE(cut.columns, 1008);
  EXPECT_EQ(CutLogits(*device, 2048, 8192).rows, 1024);  // which take little
  EXPECT_EQ(CutLogits(*device, 700, 8192).rows, 700);    // all there are
}

TEST(CutLogits, OnADeviceWithItsOwnMemoryABlockIsOnePanelOfAtMost512MiB) {
  const std::unique_ptr<Device> device = MakeRemoteDevice(MakeDevice("cpu").value(), nullptr, "");
  for (int64_t tokens : {int64_t{1}, int64_t{900}, int64_t{8192}, int64_t{1} << 20}) {
    for (int64_t columns : {int64_t{1}, int64_t{2500}, int64_t{50304}, int64_t{1} << 26}) {
      const LogitPanels cut = CutLogits(*device, tokens, columns);
      EXPECT_EQ(cut.panels, 1);
      EXPECT_GE(cut.columns, columns);
      EXPECT_LE(cut.rows * cut.columns * 4, int64_t{512} << 20);
      const int64_t blocks = (tokens + cut.rows - 1) / cut.rows;
      EXPECT_GE(blocks * cut.rows, tokens);
      // With fewer blocks a block would be too large.
      if (blocks > 1) {
        EXPECT_GT((tokens + blocks - 2) / (blocks - 1) * cut.columns * 4, int64_t{512} << 20);
      }
    }
  }
  EXPECT_EQ(CutLogits(*device, 1, 100).rows, 1);
  EXPECT_EQ(CutLogits(*device, 16, int64_t{1} << 28).rows, 1);  // a single row is more
}

}  // namespace
}  // namespace twinstream::testing
