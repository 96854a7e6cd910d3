// What layouts must not change: nothing at all where the order of sums stays, rounding elsewhere.
#pragma once

#include "tests/testing/golden_run.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {

// The project's promise for float32 on another layout. Losses and norms: relative. Gradients: of
// the tensor's largest element. Weights: in learning rates, as Adam moves elements without a
// gradient by whole learning rates.
constexpr double kLossLimit = 1e-5, kNormLimit = 1e-4, kGradientLimit = 1e-4, kWeightLimit = 0.2;

// Of a golden file's run.
void ExpectWithinLimits(const Deviations& deviations);

// Losses, norms, weights and moments; no two copies of a weight differ.
void ExpectSameBits(const RunRecord& run, const RunRecord& reference);
// Losses, norms and weights, of TinyJob's learning rate; no two copies of a weight differ.
void ExpectWithinRounding(const RunRecord& run, const RunRecord& reference);

}  // namespace twinstream::testing
