// Layer: a residual block that the streams share: attention or MLP. Single-rank code; the stage
// around it (models/transformer_stage) calls TensorRegion, so a layer sees all N tokens and its
// slice of the weights and writes its part of the output.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor.h"

namespace twinstream {

// Tensors of one micro-batch's slot, laid out by SavedSpecs.
using Saved = absl::Span<const Tensor>;

class Layer {
 public:
  virtual ~Layer() = default;
  // What the forward leaves for the backward, besides h.
  virtual std::vector<TensorSpec> SavedSpecs() const = 0;
  // The first so many of them are what ProjectIn writes.
  virtual size_t projected() const = 0;
  // The most that any call allocates from the context's scratch.
  virtual int64_t ScratchBytes() const = 0;

  // The forward in three calls, so that a backward can compute again what was not kept.
  // h: [N, C].
  virtual void ProjectIn(Tensor h, Saved saved) = 0;
  // All other saved tensors, from those of ProjectIn.
  virtual void Core(Saved saved) = 0;
  // o: [N, C], written: this tensor rank's addend of the output.
  virtual void ProjectOut(Tensor o, Saved saved) = 0;
  // d_o: [N, C] gradient of the whole output; dh: [N, C], written: this rank's addend. Leaves in
  // `saved` what BackwardWeight needs.
  virtual void BackwardInput(Tensor d_o, Tensor dh, Saved saved) = 0;
  // h and d_o as before; accumulates into the parameters' gradients.
  virtual void BackwardWeight(Tensor h, Tensor d_o, Saved saved) = 0;
};

}  // namespace twinstream
