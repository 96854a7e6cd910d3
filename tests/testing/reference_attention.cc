#include "tests/testing/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace twinstream::testing {
namespace {

struct Indices {
  AttentionShape shape;

  size_t Query(int64_t b, int64_t h, int64_t t) const {
    return static_cast<size_t>(((b * shape.heads + h) * shape.sequence + t) * shape.head_dim);
  }
  size_t Key(int64_t b, int64_t h, int64_t t) const {
    const int64_t kv = h / (shape.heads / shape.kv_heads);
    return static_cast<size_t>(((b * shape.kv_heads + kv) * shape.sequence + t) * shape.head_dim);
  }
  size_t Out(int64_t b, int64_t h, int64_t t) const {
    return static_cast<size_t>(((b * shape.sequence + t) * shape.heads + h) * shape.head_dim);
  }
};

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

void AddScaled(double* to, const double* from, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Probabilities of query t of (b, h) over keys 0 .. t, and their log-sum-exp.
struct Row {
  std::vector<double> probabilities;
  double lse;
};

Row SoftmaxRow(const Indices& at, const AttentionInputs& inputs, int64_t b, int64_t h, int64_t t) {
  const int64_t D = at.shape.head_dim;
  std::vector<double> scores;
  for (int64_t s = 0; s <= t; ++s)
    scores.push_back(Dot(&inputs.q[at.Query(b, h, t)], &inputs.k[at.Key(b, h, s)], D) /
                     std::sqrt(static_cast<double>(D)));
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double score : scores) sum += std::exp(score - largest);
  const double lse = largest + std::log(sum);
  for (double& score : scores) score = std::exp(score - lse);
  return {scores, lse};
}

template <class F>
void ForEachQuery(const AttentionShape& shape, F f) {
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t h = 0; h < shape.heads; ++h)
      for (int64_t t = 0; t < shape.sequence; ++t) f(b, h, t);
}

}  // namespace

AttentionOutputs ReferenceAttention(const AttentionShape& shape, const AttentionInputs& inputs) {
  const Indices at{shape};
  const int64_t D = shape.head_dim;
  AttentionOutputs outputs;
  outputs.out.resize(inputs.q.size());
  ForEachQuery(shape, [&](int64_t b, int64_t h, int64_t t) {
    const Row row = SoftmaxRow(at, inputs, b, h, t);
    outputs.lse.push_back(row.lse);
    for (int64_t s = 0; s <= t; ++s)
      AddScaled(&outputs.out[at.Out(b, h, t)], &inputs.v[at.Key(b, h, s)],
                row.probabilities[static_cast<size_t>(s)], D);
  });
  return outputs;
}

AttentionInputs ReferenceAttentionBackward(const AttentionShape& shape,
                                           const AttentionInputs& inputs,
                                           const std::vector<double>& dout) {
  const Indices at{shape};
  const int64_t D = shape.head_dim;
  AttentionInputs gradients;
  gradients.q.resize(inputs.q.size());
  gradients.k.resize(inputs.k.size());
  gradients.v.resize(inputs.v.size());
  ForEachQuery(shape, [&](int64_t b, int64_t h, int64_t t) {
    const std::vector<double> p = SoftmaxRow(at, inputs, b, h, t).probabilities;
    const double* dout_row = &dout[at.Out(b, h, t)];
    std::vector<double> dp;
    for (int64_t s = 0; s <= t; ++s) dp.push_back(Dot(dout_row, &inputs.v[at.Key(b, h, s)], D));
    const double mean_dp = Dot(p.data(), dp.data(), t + 1);
    for (int64_t s = 0; s <= t; ++s) {
      const size_t i = static_cast<size_t>(s), key = at.Key(b, h, s), query = at.Query(b, h, t);
      const double ds = p[i] * (dp[i] - mean_dp) / std::sqrt(static_cast<double>(D));
      AddScaled(&gradients.q[query], &inputs.k[key], ds, D);
      AddScaled(&gradients.k[key], &inputs.q[query], ds, D);
      AddScaled(&gradients.v[key], dout_row, p[i], D);
    }
  });
  return gradients;
}

}  // namespace twinstream::testing
