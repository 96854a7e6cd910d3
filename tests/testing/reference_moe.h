// The routing of tokens to experts and its losses in plain double loops, one token after another:
// the oracle of Ops::RouteTokens, RouterBackward and AddRouterLosses.
#pragma once

#include <cstdint>
#include <vector>

namespace twinstream::testing {

struct ReferenceRouting {
  std::vector<double> probabilities;          // [N, E]
  std::vector<double> lse;                    // [N]
  std::vector<std::vector<int64_t>> experts;  // of each token, likeliest first
  std::vector<int64_t> loads;                 // [E]: tokens of each expert
  double load_balance = 0, router_z = 0;      // before coefficients
};

// logits: [N, E].
ReferenceRouting RouteReference(const std::vector<double>& logits, int64_t experts, int64_t top_k);

struct ReferenceCoefficients {
  double load_balance = 0, router_z = 0;
};

// Gradient [N, E], by differences, of
//   sum over tokens n and their experts e of p[n, e] gradients[n, e]  + coefficients . losses.
// gradients: [N, E].
std::vector<double> RouterGradientReference(const std::vector<double>& logits, int64_t experts,
                                            int64_t top_k, const std::vector<double>& gradients,
                                            const ReferenceCoefficients& coefficients);

}  // namespace twinstream::testing
