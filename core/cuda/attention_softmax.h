// What the forwards of attention on tensor cores have in common: the softmax of rows whose scores
// come tile by tile, and the way of the results to their tensors.
#pragma once

#include <cmath>

#include "core/cuda/attention.h"
#include "core/cuda/tiles.h"
#include "gpu/primitives.h"

namespace twinstream::gpu {

// The softmax of a warp's rows over the keys met so far. Of row g + 8 half of each row tile: the
// largest unscaled score, the same in the four lanes of the row, and the sum of exponentials over
// the columns of this lane.
template <int kRowTiles>
struct RunningSoftmax {
  float largest[kRowTiles][2];
  float sum[kRowTiles][2];
  float log2_scale;  // scale times kLog2E: exp(scale s) = 2^(log2_scale s)

  __device__ explicit RunningSoftmax(float scale) : log2_scale(scale * kLog2E) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[m][half] = -INFINITY;
        sum[m][half] = 0;
      }
    }
  }

  // Scores of further keys become exponentials, after the largest score of all; what earlier ones
  // have weighted is then to be scaled by `shrink`, of row g + 8 half of each row tile. Of every
  // row a score has been visible in this or an earlier call.
  template <int kKeyTiles>
  __device__ void Take(Sums<kRowTiles, kKeyTiles>& scores, float (&shrink)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float best = largest[m][half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          best = fmaxf(best, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        best = fmaxf(best, ShuffleXor(best, 1));
        best = fmaxf(best, ShuffleXor(best, 2));
        shrink[m][half] = FastExp2((largest[m][half] - best) * log2_scale);
        const float shift = best * log2_scale;
        largest[m][half] = best;
        float total = sum[m][half] * shrink[m][half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            scores[m][n][i] = FastExp2(scores[m][n][i] * log2_scale - shift);
            total += scores[m][n][i];
          }
        }
        sum[m][half] = total;
      }
    }
  }

  // Each sum becomes that of the whole row.
  __device__ void Finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += ShuffleXor(sum[m][half], 1);
        sum[m][half] += ShuffleXor(sum[m][half], 2);
      }
    }
  }
};

// factors: of row g + 8 half of each row tile.
template <int kRowTiles, int kColumnTiles>
__device__ void ScaleRows(Sums<kRowTiles, kColumnTiles>& sums,
                          const float (&factors)[kRowTiles][2]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factors[m][i / 2];
    }
  }
}

// Writes a warp's rows, from token first_query on, or takes them into what is there; their lse too.
template <int kRowTiles, int kColumnTiles>
__device__ void WriteResults(const AttentionArguments& a, int head, int first_query,
                             const RunningSoftmax<kRowTiles>& softmax,
                             const Sums<kRowTiles, kColumnTiles>& out) {
  const int group = ThisLane() / 4;
  float old_lse[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + group + 8 * half;
      const bool merges = a.form == ScoreForm::kRectangle && query < a.query_end;
      old_lse[m][half] = merges ? a.Lse(head, query) : -INFINITY;
    }
  }
  SyncWarp();  // all four lanes of a row have its old lse
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * m + group + 8 * half;
      if (query >= a.query_end) continue;
      const float sum = softmax.sum[m][half], old = old_lse[m][half];
      const float part = a.scale * softmax.largest[m][half] + Log(sum);
      const float merged = a.form == ScoreForm::kTriangle ? part : MergedLse(old, part);
      WriteRow(a.out, a.TokenRow(head, query), a.D, out[m], half, Exp(part - merged) / sum,
               Exp(old - merged));
      if (ThisLane() % 4 == 0) a.Lse(head, query) = merged;
    }
  }
}

}  // namespace twinstream::gpu
