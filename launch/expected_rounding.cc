#include "launch/expected_rounding.h"

#include <cmath>

#include "core/check.h"

namespace twinstream {
namespace {

// Two bf16 runs of the same mathematics. A gradient's way leads through R roundings, each of an
// activation or of the gradient of one: in a block's forward h, the first product, the inner
// activations (q, k and v before and after their norms; the gated product), the last product and
// both streams, at most 7; as many in its backward, where experts have two more (the rows p d_o,
// and those that come back); and those of the embedding, of the head's input and of the logits'
// gradient, forward and back. A rounding is a relative error of at most e = 2^-8, e / sqrt(3) in
// the mean square, and norms keep relative errors relative: they add up like a random walk. Both
// runs have one, sqrt(2); and of a tensor's elements the worst is about 4 standard deviations out.
//
// The loss is lse - logit of the target: as far off, of its own size, as logits are, but for the
// mean over the batch's tokens, whose errors are as good as independent.
ExpectedRounding OfBFloat16(const JobSpec& job) {
  constexpr double kEpsilon = 0x1p-8;
  const double of_block = job.model().has_moe() ? 16 : 14;
  const double roundings = of_block * 2 * static_cast<double>(job.model().layers()) + 4;
  const double walk = 4 * std::sqrt(2.0) * std::sqrt(roundings / 3) * kEpsilon;
  const double tokens = static_cast<double>(job.train().global_batch() * job.model().sequence());
  return {.loss = walk / std::sqrt(tokens), .norm = walk, .gradient = walk};
}

}  // namespace

ExpectedRounding ExpectedRoundingOf(const JobSpec& job) {
  switch (job.train().precision()) {
    case TrainSpec::FP32:
      // Measured on the golden files, two orders of magnitude below.
      return {.loss = 1e-5, .norm = 1e-4, .gradient = 1e-4};
    case TrainSpec::BF16:
      return OfBFloat16(job);
  }
  Die("unknown precision");
}

}  // namespace twinstream
