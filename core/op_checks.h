// What every device's operations (core/ops.h) ask of their operands first; those of residual sites:
// core/residual_site.h. Each function dies unless the tensors fit each other.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/ops.h"

namespace twinstream {

// Of Device::Copy.
void CheckCopy(Tensor to, Tensor from);

struct MatmulShape {
  int64_t M = 0, N = 0, K = 0;
};

// Of out [M, N] and, as multiplied, a [M, K] and b [K, N]: matrices of float32 or bf16.
MatmulShape CheckedMatmul(Tensor out, Tensor a, Tensor b, const MatmulOptions& options);

void CheckQkvForward(const AttentionShape& shape, const QkvTensors& t);
void CheckQkvBackward(const AttentionShape& shape, const QkvTensors& t, Tensor dqkv);

void CheckSwiGluForward(Tensor out, Tensor up);
void CheckSwiGluBackward(Tensor dup, Tensor dout, Tensor up);

void CheckRouteTokens(const RoutingTensors& t);
void CheckRouterBackward(const RoutingTensors& t, Tensor weighted);
void CheckAddRouterLosses(Tensor losses, Tensor loads, Tensor statistics);
void CheckGatherRows(Tensor out, Tensor in, Tensor choices, Tensor weights);
void CheckCombineRows(Tensor out, Tensor in, Tensor rows, Tensor weights);
void CheckRowProducts(Tensor out, Tensor a, Tensor b);

void CheckEmbeddingForward(Tensor out, Tensor tokens, Tensor table);
void CheckEmbeddingBackward(Tensor dtable, Tensor tokens, Tensor dout);

void CheckLogitStatistics(Tensor statistics, Tensor logits, Tensor targets);
void CheckMergeLogitStatistics(Tensor lse, Tensor sums, Tensor gathered, Tensor targets);
void CheckLogitGradient(Tensor gradient, Tensor logits, Tensor targets, Tensor lse);

void CheckAdamW(const AdamWItem& item);
void CheckSumsOfSquares(Tensor sums, absl::Span<const Tensor> tensors);

void CheckAdd(Tensor out, Tensor a);
void CheckCast(Tensor out, Tensor in);

}  // namespace twinstream
