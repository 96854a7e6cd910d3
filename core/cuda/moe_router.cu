// Routing of tokens to experts on a CUDA device: softmax, top-k, order, and the router's losses.
// A routed row's place follows from counts of earlier tokens alone, so that no order of threads
// shows: parts of the tokens are counted, the counts summed over earlier parts, the rows placed.
#include <algorithm>

#include "core/cuda/kernel.h"
#include "core/cuda/ops.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

using gpu::CeilingOfQuotient;
using gpu::Launch;
using gpu::ThisLane;
using gpu::ThisWarp;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / gpu::kWarpLanes;

struct Routing {
  float *probabilities, *lse, *weights;
  int32_t *experts, *rows, *choices, *counts;
  double* statistics;
  int64_t N, E, k;
};

// The tokens, cut into parts of `tokens`, each a block's.
struct Parts {
  int64_t parts, tokens;
  double* sums;     // [E + 1, parts] of the part's probabilities of each expert; of lse^2
  int32_t* counts;  // [E, parts] tokens of each expert; then those of earlier parts
};

// Larger for the larger logit and, of equals, for the lower expert; the NaNs have places too.
// Neither the least nor the largest number.
__device__ uint64_t Preference(float logit, int64_t e) {
  const uint32_t bits = gpu::AsBits(logit + 0.0F);  // -0 becomes 0
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{ascending} << 32 | (0x7FFFFFFFU - static_cast<uint32_t>(e));
}
__device__ int32_t ExpertOf(uint64_t preference) {
  return static_cast<int32_t>(0x7FFFFFFFU - static_cast<uint32_t>(preference));
}

// A warp chooses a token's experts, the likeliest first, and gives the largest logit.
__device__ float ChooseExperts(const float* logits, int32_t* chosen, int64_t E, int64_t k) {
  uint64_t last = ~uint64_t{0};
  float largest = 0;
  for (int64_t j = 0; j < k; ++j) {
    uint64_t best = 0;
    for (int64_t e = ThisLane(); e < E; e += gpu::kWarpLanes) {
      const uint64_t preference = Preference(logits[e], e);
      if (preference < last) best = std::max(best, preference);
    }
    last = gpu::ReduceLanes<gpu::kWarpLanes>(best,
                                             [](uint64_t a, uint64_t b) { return std::max(a, b); });
    if (ThisLane() == 0) chosen[j] = ExpertOf(last);
    if (j == 0) largest = logits[ExpertOf(last)];
  }
  return largest;
}

__device__ void RouteToken(const Routing& t, int64_t n) {
  float* const row = t.probabilities + n * t.E;
  int32_t* const chosen = t.experts + n * t.k;
  const float largest = ChooseExperts(row, chosen, t.E, t.k);
  float sum = 0;
  for (int64_t e = ThisLane(); e < t.E; e += gpu::kWarpLanes) sum += gpu::Exp(row[e] - largest);
  sum = gpu::WarpSum(sum);
  const float scale = 1 / sum;
  gpu::SyncWarp();  // all lanes have read the largest logit
  for (int64_t e = ThisLane(); e < t.E; e += gpu::kWarpLanes) {
    row[e] = gpu::Exp(row[e] - largest) * scale;
  }
  gpu::SyncWarp();
  for (int64_t j = ThisLane(); j < t.k; j += gpu::kWarpLanes) {
    t.weights[n * t.k + j] = row[chosen[j]];
  }
  if (ThisLane() == 0) t.lse[n] = largest + gpu::Log(sum);
}

// A part's tokens of expert e, and the sum of their probabilities of it; e = E: of lse^2.
__device__ void SumPart(const Routing& t, const Parts& p, int64_t begin, int64_t end, int64_t e) {
  double sum = 0;
  for (int64_t n = begin; n < end; ++n) {
    sum += e < t.E ? static_cast<double>(t.probabilities[n * t.E + e])
                   : static_cast<double>(t.lse[n]) * static_cast<double>(t.lse[n]);
  }
  p.sums[e * p.parts + blockIdx.x] = sum;
  if (e == t.E) return;
  int32_t count = 0;
  for (int64_t i = begin * t.k; i < end * t.k; ++i) count += t.experts[i] == e ? 1 : 0;
  p.counts[e * p.parts + blockIdx.x] = count;
}

// Floor: one read and one write of N E float32 (a row of logits stays in the first-level cache
// while its warp goes over it).
__global__ void __launch_bounds__(kThreads) RouteKernel(Routing t, Parts p) {
  const int64_t begin = blockIdx.x * p.tokens, end = std::min(t.N, begin + p.tokens);
  for (int64_t n = begin + ThisWarp(); n < end; n += kWarps) RouteToken(t, n);
  gpu::SyncBlock();
  for (int64_t e = threadIdx.x; e <= t.E; e += kThreads) SumPart(t, p, begin, end, e);
}

// A warp for each expert, and one for lse^2.
__global__ void SumPartsKernel(Routing t, Parts p) {
  const int64_t e = blockIdx.x;
  double sum = 0;
  for (int64_t part = ThisLane(); part < p.parts; part += gpu::kWarpLanes) {
    sum += p.sums[e * p.parts + part];
  }
  sum = gpu::WarpSum(sum);
  if (ThisLane() == 0) t.statistics[t.E + e] = sum;
  if (e == t.E) return;
  int32_t before = 0;
  for (int64_t first = 0; first < p.parts; first += gpu::kWarpLanes) {
    const int64_t part = first + ThisLane();
    const int32_t count = part < p.parts ? p.counts[e * p.parts + part] : 0;
    const int32_t through = gpu::WarpPrefixSum(count);
    if (part < p.parts) p.counts[e * p.parts + part] = before + through - count;
    before += gpu::Shuffle(through, gpu::kWarpLanes - 1);
  }
  if (ThisLane() != 0) return;
  t.counts[e] = before;
  t.statistics[e] = before;
}

// A thread places a part's tokens of its experts, in their order; some choices are read at a time,
// as no read passes a write. Floor: 12 N k bytes; the choices of a part are read again for each
// expert, from the first-level cache.
__global__ void PlaceKernel(Routing t, Parts p) {
  constexpr int kAtATime = 8;
  const int64_t begin = blockIdx.x * p.tokens, end = std::min(t.N, begin + p.tokens) * t.k;
  for (int64_t e = threadIdx.x; e < t.E; e += kThreads) {
    int32_t row = p.counts[e * p.parts + blockIdx.x];
    for (int64_t lower = 0; lower < e; ++lower) row += t.counts[lower];
    for (int64_t first = begin * t.k; first < end; first += kAtATime) {
      int32_t experts[kAtATime];
      for (int i = 0; i < kAtATime; ++i) experts[i] = first + i < end ? t.experts[first + i] : -1;
      for (int i = 0; i < kAtATime; ++i) {
        if (experts[i] != e) continue;
        t.rows[first + i] = row;
        t.choices[row] = static_cast<int32_t>(first + i);
        ++row;
      }
    }
  }
}

// sum n_e = N' k, by a warp.
__device__ double ChosenOf(const double* statistics, int64_t E) {
  double chosen = 0;
  for (int64_t e = ThisLane(); e < E; e += gpu::kWarpLanes) chosen += statistics[e];
  return gpu::WarpSum(chosen);
}

// A warp for each token, in turn. With q_e = p_e dL/dp_e of the choices, c_e = dL/dp_e of the load
// balance, and z of the z-loss:
//   dlogit_e = q_e - p_e sum q + p_e (c_e - sum_i p_i c_i) + 2 z lse p_e
// Floor: one read and one write of N E float32.
__global__ void BackwardKernel(Routing t, const float* q, RouterLossScales scales) {
  const double chosen = ChosenOf(t.statistics, t.E);
  const double tokens = chosen / static_cast<double>(t.k);
  const auto balance = static_cast<float>(static_cast<double>(scales.load_balance) *
                                          static_cast<double>(t.E) / (chosen * tokens));
  const auto z = static_cast<float>(static_cast<double>(scales.router_z) * 2 / tokens);
  for (int64_t n = int64_t{blockIdx.x} * kWarps + ThisWarp(); n < t.N;
       n += int64_t{gridDim.x} * kWarps) {
    float* const p = t.probabilities + n * t.E;
    float sum = 0;
    for (int64_t e = ThisLane(); e < t.E; e += gpu::kWarpLanes) {
      sum += p[e] * (balance * static_cast<float>(t.statistics[e]));
    }
    for (int64_t j = ThisLane(); j < t.k; j += gpu::kWarpLanes) sum += q[t.rows[n * t.k + j]];
    const float common = z * t.lse[n] - gpu::WarpSum(sum);
    for (int64_t e = ThisLane(); e < t.E; e += gpu::kWarpLanes) {
      p[e] *= balance * static_cast<float>(t.statistics[e]) + common;
    }
    gpu::SyncWarp();
    for (int64_t j = ThisLane(); j < t.k; j += gpu::kWarpLanes) {
      p[t.experts[n * t.k + j]] += q[t.rows[n * t.k + j]];
    }
  }
}

// One warp: E numbers.
__global__ void LossesKernel(double* losses, double* loads, const double* statistics, int64_t E,
                             int64_t k) {
  const double chosen = ChosenOf(statistics, E);
  double overlap = 0;
  for (int64_t e = ThisLane(); e < E; e += gpu::kWarpLanes) {
    overlap += statistics[e] * statistics[E + e];
    loads[e] += statistics[e];
  }
  overlap = gpu::WarpSum(overlap);
  if (ThisLane() != 0) return;
  const double tokens = chosen / static_cast<double>(k);
  losses[0] += static_cast<double>(E) * overlap / (chosen * tokens);
  losses[1] += statistics[2 * E] / tokens;
}

Routing RoutingOf(const RoutingTensors& t) {
  return {.probabilities = t.probabilities.As<float>(),
          .lse = t.lse.As<float>(),
          .weights = t.weights.As<float>(),
          .experts = t.experts.As<int32_t>(),
          .rows = t.rows.As<int32_t>(),
          .choices = t.choices.As<int32_t>(),
          .counts = t.counts.As<int32_t>(),
          .statistics = t.statistics.As<double>(),
          .N = t.probabilities.dim(0),
          .E = t.probabilities.dim(1),
          .k = t.experts.dim(1)};
}

Parts CutTokens(int64_t N, int64_t E, const Workspace& workspace) {
  const auto [tokens, parts] = RouterPartsOf(N);
  auto* const sums = workspace.As<double>(RouteTokensBytes(N, E));
  return {parts, tokens, sums, reinterpret_cast<int32_t*>(sums + (E + 1) * parts)};
}

}  // namespace

void CudaOps::RouteTokens(const RoutingTensors& tensors) const {
  CheckRouteTokens(tensors);
  const Routing t = RoutingOf(tensors);
  const Parts p = CutTokens(t.N, t.E, workspace_);
  const auto parts = static_cast<unsigned>(p.parts);
  if (parts > 0) {
    Launch("RouteTokens", RouteKernel, {.blocks = parts, .threads = kThreads}, stream_, t, p);
  }
  Launch("RouteTokens, sums of parts", SumPartsKernel,
         {.blocks = static_cast<unsigned>(t.E + 1), .threads = gpu::kWarpLanes}, stream_, t, p);
  if (parts > 0) {
    Launch("RouteTokens, rows", PlaceKernel, {.blocks = parts, .threads = kThreads}, stream_, t, p);
  }
}

void CudaOps::RouterBackward(const RoutingTensors& tensors, Tensor weighted,
                             const RouterLossScales& scales) const {
  CheckRouterBackward(tensors, weighted);
  const Routing t = RoutingOf(tensors);
  if (t.N == 0) return;
  const int64_t blocks =
      std::min(CeilingOfQuotient(t.N, kWarps), int64_t{card_.multiprocessors} * 16);
  Launch("RouterBackward", BackwardKernel,
         {.blocks = static_cast<unsigned>(blocks), .threads = kThreads}, stream_, t,
         static_cast<const float*>(weighted.As<float>()), scales);
}

void CudaOps::AddRouterLosses(Tensor losses, Tensor loads, Tensor statistics, int64_t top_k) const {
  CheckAddRouterLosses(losses, loads, statistics);
  const int64_t E = loads.elements();
  Launch("AddRouterLosses", LossesKernel, {.blocks = 1, .threads = gpu::kWarpLanes}, stream_,
         losses.As<double>(), loads.As<double>(),
         static_cast<const double*>(statistics.As<double>()), E, top_k);
}

}  // namespace twinstream
