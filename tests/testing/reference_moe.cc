#include "tests/testing/reference_moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace twinstream::testing {
namespace {

double Loss(const std::vector<double>& logits, int64_t experts, int64_t top_k,
            const std::vector<double>& gradients, const ReferenceCoefficients& coefficients) {
  const ReferenceRouting routing = RouteReference(logits, experts, top_k);
  double loss =
      coefficients.load_balance * routing.load_balance + coefficients.router_z * routing.router_z;
  for (size_t n = 0; n < routing.experts.size(); ++n) {
    for (const int64_t e : routing.experts[n]) {
      const size_t at = n * static_cast<size_t>(experts) + static_cast<size_t>(e);
      loss += routing.probabilities[at] * gradients[at];
    }
  }
  return loss;
}

}  // namespace

ReferenceRouting RouteReference(const std::vector<double>& logits, int64_t experts, int64_t top_k) {
  const size_t E = static_cast<size_t>(experts), N = logits.size() / E;
  ReferenceRouting routing = {.probabilities = logits, .loads = std::vector<int64_t>(E)};
  std::vector<double> mean(E);
  for (size_t n = 0; n < N; ++n) {
    double* const row = &routing.probabilities[n * E];
    std::vector<int64_t> order(E);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return row[a] > row[b]; });
    order.resize(static_cast<size_t>(top_k));
    for (const int64_t e : order) ++routing.loads[static_cast<size_t>(e)];
    routing.experts.push_back(order);
    double sum = 0;
    for (size_t e = 0; e < E; ++e) sum += std::exp(row[e]);
    routing.lse.push_back(std::log(sum));
    for (size_t e = 0; e < E; ++e) {
      row[e] = std::exp(row[e]) / sum;
      mean[e] += row[e] / static_cast<double>(N);
    }
    routing.router_z += std::log(sum) * std::log(sum) / static_cast<double>(N);
  }
  for (size_t e = 0; e < E; ++e) {
    const double share =
        static_cast<double>(routing.loads[e]) / static_cast<double>(N * static_cast<size_t>(top_k));
    routing.load_balance += static_cast<double>(E) * share * mean[e];
  }
  return routing;
}

std::vector<double> RouterGradientReference(const std::vector<double>& logits, int64_t experts,
                                            int64_t top_k, const std::vector<double>& gradients,
                                            const ReferenceCoefficients& coefficients) {
  constexpr double kStep = 1e-5;
  std::vector<double> moved = logits, gradient;
  for (size_t i = 0; i < logits.size(); ++i) {
    moved[i] = logits[i] + kStep;
    const double above = Loss(moved, experts, top_k, gradients, coefficients);
    moved[i] = logits[i] - kStep;
    const double below = Loss(moved, experts, top_k, gradients, coefficients);
    moved[i] = logits[i];
    gradient.push_back((above - below) / (2 * kStep));
  }
  return gradient;
}

}  // namespace twinstream::testing
