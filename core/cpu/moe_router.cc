// Routing of tokens to experts on the CPU: softmax, top-k, order, and the router's losses.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/cpu/vector_rows.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

constexpr int64_t kOperationsPerExpert = 20;  // an exponential and a few comparisons

struct RoutingShape {
  int64_t N, E, k;
};

RoutingShape ShapeOf(const RoutingTensors& t) {
  return {t.probabilities.dim(0), t.probabilities.dim(1), t.experts.dim(1)};
}

// The k largest logits' ids, by insertion; valid ids even where logits are not numbers.
void ChooseExperts(const float* logits, int64_t E, int64_t k, int32_t* chosen) {
  for (int64_t e = 0; e < E; ++e) {
    int64_t place = std::min(e, k);  // as many are filled
    if (place == k) {
      if (!(logits[e] > logits[chosen[k - 1]])) continue;
      --place;  // the last one falls out
    }
    for (; place > 0 && logits[e] > logits[chosen[place - 1]]; --place) {
      chosen[place] = chosen[place - 1];
    }
    chosen[place] = static_cast<int32_t>(e);
  }
}

// Logits become their softmax; gives their log-sum-exp.
float Softmax(float* row, int64_t E) {
  const float largest = MaxOfRow(E, row);
  Vector sums = {};
  ForVectors(E, [=, &sums](auto at) {
    sums += at.Store(Exp(at.LoadOr(kMinusInfinity, row) - largest), row);
  });
  const float sum = SumOfLanes(sums), scale = 1 / sum;
  VectorLoop(E, [=](int64_t e) { row[e] *= scale; });
  return largest + std::log(sum);
}

// A stable counting sort of the choices by expert. One thread: two passes over N k numbers.
void OrderByExpert(const RoutingShape& shape, const int32_t* experts, int32_t* rows,
                   int32_t* choices, int32_t* counts) {
  const int64_t pairs = shape.N * shape.k;
  std::fill_n(counts, shape.E, 0);
  for (int64_t i = 0; i < pairs; ++i) ++counts[experts[i]];
  int32_t begin = 0;
  for (int64_t e = 0; e < shape.E; ++e) begin += std::exchange(counts[e], begin);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t row = counts[experts[i]]++;  // from the expert's begin to its end
    rows[i] = row;
    choices[row] = static_cast<int32_t>(i);
  }
  for (int64_t e = shape.E - 1; e > 0; --e) counts[e] -= counts[e - 1];
}

// One thread: the sums are taken in the order of the tokens.
void SumStatistics(const RoutingShape& shape, const RoutingTensors& t) {
  const auto [N, E, k] = shape;
  const int32_t* const counts = t.counts.As<int32_t>();
  const float* const lse = t.lse.As<float>();
  double* const tokens = t.statistics.As<double>();
  double* const probabilities = tokens + E;
  double lse_squares = 0;
  std::fill_n(probabilities, E, 0.0);
  for (int64_t n = 0; n < N; ++n) {
    const float* const row = t.probabilities.As<float>() + n * E;
    VectorLoop(E, [=](int64_t e) { probabilities[e] += static_cast<double>(row[e]); });
    lse_squares += static_cast<double>(lse[n]) * lse[n];
  }
  std::copy_n(counts, E, tokens);
  tokens[2 * E] = lse_squares;
}

}  // namespace

void CpuOps::RouteTokens(const RoutingTensors& t) const {
  CheckRouteTokens(t);
  const RoutingShape shape = ShapeOf(t);
  const auto [N, E, k] = shape;
  float* const probabilities = t.probabilities.As<float>();
  float* const lse = t.lse.As<float>();
  float* const weights = t.weights.As<float>();
  int32_t* const experts = t.experts.As<int32_t>();
  ParallelRows(N, GrainFor(kOperationsPerExpert * E),
               [=, E = E, k = k](int64_t begin, int64_t end) {
                 for (int64_t n = begin; n < end; ++n) {
                   float* const row = probabilities + n * E;
                   int32_t* const chosen = experts + n * k;
                   ChooseExperts(row, E, k, chosen);
                   lse[n] = Softmax(row, E);
                   for (int64_t j = 0; j < k; ++j) weights[n * k + j] = row[chosen[j]];
                 }
               });
  OrderByExpert(shape, experts, t.rows.As<int32_t>(), t.choices.As<int32_t>(),
                t.counts.As<int32_t>());
  SumStatistics(shape, t);
}

// With q_e = p_e dL/dp_e of the choices, c_e = dL/dp_e of the load balance, and z of the z-loss:
//   dlogit_e = q_e - p_e sum q + p_e (c_e - sum_i p_i c_i) + 2 z lse p_e
void CpuOps::RouterBackward(const RoutingTensors& t, Tensor weighted,
                            const RouterLossScales& scales) const {
  CheckRouterBackward(t, weighted);
  const auto [N, E, k] = ShapeOf(t);
  const double* const tokens_of = t.statistics.As<double>();
  double chosen = 0;  // N' k
  for (int64_t e = 0; e < E; ++e) chosen += tokens_of[e];
  const double tokens = chosen / static_cast<double>(k);
  const float balance =
      static_cast<float>(scales.load_balance * static_cast<double>(E) / (chosen * tokens));
  const float z = static_cast<float>(scales.router_z * 2 / tokens);

  float* const probabilities = t.probabilities.As<float>();
  const float* const lse = t.lse.As<float>();
  const float* const q = weighted.As<float>();
  const int32_t* const experts = t.experts.As<int32_t>();
  const int32_t* const rows = t.rows.As<int32_t>();
  ParallelRows(N, GrainFor(4 * E), [=, E = E, k = k](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const p = probabilities + n * E;
      const auto balance_of = [=](int64_t e) { return balance * static_cast<float>(tokens_of[e]); };
      float sum = VectorSum(E, [=](int64_t e) { return p[e] * balance_of(e); });
      for (int64_t j = 0; j < k; ++j) sum += q[rows[n * k + j]];
      const float common = z * lse[n] - sum;
      VectorLoop(E, [=](int64_t e) { p[e] *= balance_of(e) + common; });
      for (int64_t j = 0; j < k; ++j) p[experts[n * k + j]] += q[rows[n * k + j]];
    }
  });
}

void CpuOps::AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics, int64_t top_k) const {
  CheckAddRouterLosses(losses, loads, statistics);
  const int64_t E = loads.elements();
  const double* const tokens_of = statistics.As<double>();
  const double* const probabilities = tokens_of + E;
  double* const load = loads.As<double>();
  double chosen = 0, overlap = 0;
  for (int64_t e = 0; e < E; ++e) {
    chosen += tokens_of[e];
    overlap += tokens_of[e] * probabilities[e];
    load[e] += tokens_of[e];
  }
  const double tokens = chosen / static_cast<double>(top_k);
  losses.As<double>()[0] += static_cast<double>(E) * overlap / (chosen * tokens);
  losses.As<double>()[1] += tokens_of[2 * E] / tokens;
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
