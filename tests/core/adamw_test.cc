#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <iterator>
#include <random>
#include <vector>

#include "tests/testing/near.h"
#include "tests/testing/tested_ops.h"
#include "tests/testing/vectors.h"

namespace twinstream {
namespace {

constexpr int64_t kElements = 20011;
constexpr float kWeightDecay = 0.1F;

Tensor TensorOf(std::vector<float>& values) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF32,
                {static_cast<int64_t>(values.size())});
}

std::vector<float> Random(uint32_t seed, float deviation, size_t elements = kElements) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(elements);
  for (float& v : values) v = normal(generator);
  return values;
}

AdamWOptions OptionsOf(int update) {
  const float beta1 = 0.9F, beta2 = 0.95F;
  return {.learning_rate = 1e-3F,
          .beta1 = beta1,
          .beta2 = beta2,
          .eps = 1e-8F,
          .bias_correction1 = 1 - std::pow(beta1, static_cast<float>(update)),
          .bias_correction2 = 1 - std::pow(beta2, static_cast<float>(update)),
          .gradient_scale = 0.5F};
}

// Of one tensor alone.
void Update(const AdamWOptions& options, Tensor weight, Tensor m, Tensor v, Tensor gradient,
            Tensor rounded = {}, float weight_decay = kWeightDecay) {
  testing::TestedOps().AdamW(options, {{.weight = weight,
                                        .m = m,
                                        .v = v,
                                        .gradient = gradient,
                                        .rounded = rounded,
                                        .weight_decay = weight_decay}});
}

// As PyTorch's documentation of AdamW states it.
void Reference(const AdamWOptions& o, std::vector<double>& w, std::vector<double>& m,
               std::vector<double>& v, const std::vector<float>& gradient) {
  const double rate = o.learning_rate, beta1 = o.beta1, beta2 = o.beta2;
  for (size_t i = 0; i < w.size(); ++i) {
    const double g = static_cast<double>(o.gradient_scale) * gradient[i];
    w[i] -= rate * kWeightDecay * w[i];
    m[i] = beta1 * m[i] + (1 - beta1) * g;
    v[i] = beta2 * v[i] + (1 - beta2) * g * g;
    w[i] -= rate * (m[i] / o.bias_correction1) / (std::sqrt(v[i] / o.bias_correction2) + o.eps);
  }
}

TEST(AdamWTest, SeveralUpdatesMatchTheReferenceOnAnyNumberOfThreads) {
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    std::vector<float> weight = Random(1, 0.02F), m(kElements), v(kElements);
    std::vector<double> w(weight.begin(), weight.end()), m64(kElements), v64(kElements);
    for (int update = 1; update <= 5; ++update) {
      std::vector<float> gradient = Random(static_cast<uint32_t>(100 + update), 1e-2F);
      Update(OptionsOf(update), TensorOf(weight), TensorOf(m), TensorOf(v), TensorOf(gradient));
      Reference(OptionsOf(update), w, m64, v64, gradient);
    }
    EXPECT_LE(testing::RelativeError(weight, w), testing::Float32Tolerance(5));
    EXPECT_LE(testing::RelativeError(m, m64), testing::Float32Tolerance(5));
    EXPECT_LE(testing::RelativeError(v, v64), testing::Float32Tolerance(5));
  }
  omp_set_num_threads(1);
}

// The master does not know of its copy, and the copy is always one rounding away from it.
TEST(AdamWTest, TheRoundedCopyIsTheWeightRoundedOnce) {
  std::vector<float> weight = Random(1, 0.02F), m(kElements), v(kElements), alone = weight,
                     alone_m = m, alone_v = v;
  std::vector<BFloat16> rounded(kElements);
  for (int update = 1; update <= 3; ++update) {
    std::vector<float> gradient = Random(static_cast<uint32_t>(100 + update), 1e-2F);
    Update(OptionsOf(update), TensorOf(weight), TensorOf(m), TensorOf(v), TensorOf(gradient),
           testing::View(rounded, {kElements}));
    Update(OptionsOf(update), TensorOf(alone), TensorOf(alone_m), TensorOf(alone_v),
           TensorOf(gradient));
    EXPECT_EQ(weight, alone);
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(rounded[i].bits, RoundToBFloat16(weight[i]).bits) << weight[i];
    }
  }
}

// Parts of larger tensors begin anywhere.
TEST(AdamWTest, NoBitDependsOnWhereTheTensorsBegin) {
  std::vector<float> weight = Random(1, 0.02F), m(kElements), v(kElements), gradient = Random(2, 1);
  std::vector<BFloat16> rounded(kElements), shifted_rounded(kElements + 3);
  std::vector<float> shifted = {0};
  shifted.insert(shifted.end(), weight.begin(), weight.end());
  std::vector<float> m_again = m, v_again = v;
  Update(OptionsOf(1), TensorOf(weight), TensorOf(m), TensorOf(v), TensorOf(gradient),
         testing::View(rounded, {kElements}));
  Update(OptionsOf(1), TensorOf(shifted).Rows(1, kElements + 1), TensorOf(m_again),
         TensorOf(v_again), TensorOf(gradient),
         testing::View(shifted_rounded, {kElements + 3}).Rows(3, kElements + 3));
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(shifted[i + 1], weight[i]);
    ASSERT_EQ(shifted_rounded[i + 3].bits, rounded[i].bits);
  }
}

TEST(AdamWTest, TheFirstUpdateMovesByTheLearningRate) {
  std::vector<float> weight = {1, 1, 1}, m(3), v(3), gradient = {2e-3F, -5, 0};
  Update(OptionsOf(1), TensorOf(weight), TensorOf(m), TensorOf(v), TensorOf(gradient), {}, 0);
  EXPECT_NEAR(weight[0], 1 - 1e-3, 1e-7);
  EXPECT_NEAR(weight[1], 1 + 1e-3, 1e-7);
  EXPECT_EQ(weight[2], 1);
}

TEST(AdamWTest, WithoutGradientOnlyDecayMoves) {
  std::vector<float> weight = {2, -4}, m(2), v(2), gradient(2);
  Update(OptionsOf(1), TensorOf(weight), TensorOf(m), TensorOf(v), TensorOf(gradient));
  EXPECT_FLOAT_EQ(weight[0], 2 * (1 - 1e-4F));
  EXPECT_FLOAT_EQ(weight[1], -4 * (1 - 1e-4F));
}

// A parameter of a model: its tensors begin `begin` elements into their memory.
struct Held {
  int64_t begin;
  std::vector<float> weight, gradient, m, v;
  std::vector<BFloat16> rounded;  // or empty
  float weight_decay;

  AdamWItem item() {
    const auto part = [this](Tensor whole) { return whole.Rows(begin, whole.dim(0)); };
    return {.weight = part(TensorOf(weight)),
            .m = part(TensorOf(m)),
            .v = part(TensorOf(v)),
            .gradient = part(TensorOf(gradient)),
            .rounded = rounded.empty() ? Tensor() : part(testing::View(rounded, {size()})),
            .weight_decay = weight_decay};
  }
  int64_t size() const { return static_cast<int64_t>(weight.size()); }
};

// More than one grid of a card takes: empty ones, single elements, one and several blocks, parts of
// packs, with a rounded copy or without.
std::vector<Held> ManyParameters() {
  std::vector<Held> parameters;
  for (uint32_t i = 0; i < 300; ++i) {
    constexpr size_t kSizes[] = {5, 4096, 0, 1, 9001, 4, 1023, 0, 3, 4097};
    const size_t begin = i % 3 == 0 ? 1 : 0, size = begin + kSizes[i % std::size(kSizes)];
    parameters.push_back({.begin = static_cast<int64_t>(begin),
                          .weight = Random(2 * i, 0.02F, size),
                          .gradient = Random(2 * i + 1, 1e-2F, size),
                          .m = std::vector<float>(size),
                          .v = std::vector<float>(size),
                          .rounded = std::vector<BFloat16>(i % 4 < 2 ? size : 0),
                          .weight_decay = 0.1F * static_cast<float>(i % 7)});
  }
  return parameters;
}

TEST(AdamWTest, ManyTensorsTogetherGetTheBitsOfEachAlone) {
  std::vector<Held> together = ManyParameters(), alone = together;
  const std::vector<Held> before = together;
  for (int update : {1, 2}) {
    std::vector<AdamWItem> items;
    for (Held& parameter : together) items.push_back(parameter.item());
    testing::TestedOps().AdamW(OptionsOf(update), items);
    for (Held& parameter : alone) {
      testing::TestedOps().AdamW(OptionsOf(update), {parameter.item()});
    }
  }
  for (size_t i = 0; i < alone.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(together[i].weight, alone[i].weight);
    EXPECT_EQ(together[i].m, alone[i].m);
    EXPECT_EQ(together[i].v, alone[i].v);
    EXPECT_EQ(together[i].rounded, alone[i].rounded);
    if (alone[i].size() > alone[i].begin) {
      EXPECT_NE(together[i].weight, before[i].weight);
    }
  }
}

TEST(AdamWTest, NoTensorsAreNoWork) {
  testing::TestedOps().AdamW(OptionsOf(1), {});
  std::vector<float> none;
  Update(OptionsOf(1), TensorOf(none), TensorOf(none), TensorOf(none), TensorOf(none));
}

}  // namespace
}  // namespace twinstream
