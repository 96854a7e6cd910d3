// What every device's kernels of a residual site (core/ops.h) ask of it first.
#pragma once

#include "core/ops.h"

namespace twinstream {

// Whether the read normalises x: for its base, or for u alone.
bool NormalisesX(const ResidualRead& read);

// Whether the read multiplies x by a weight: that of a norm, or a learned scale.
bool UsesXWeight(const ResidualRead& read);

// Die unless the site is possible and has all its tensors, each of its shape and dtype: activations
// of that of t.x and t.dx.
void CheckResidualForward(const ResidualSite& site, const ResidualForwardTensors& t);
void CheckResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t);

}  // namespace twinstream
