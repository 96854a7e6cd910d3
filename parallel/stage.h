// Stage: what the pipeline engine drives. One contiguous part of the model on one rank.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "parallel/box.h"

namespace twinstream {

// Memory of one micro-batch in flight on one stage.
struct Slot {
  // Boundary tensors [S, N, C]: all residual streams in one message. Absent where there is no
  // neighbour.
  Tensor input, output;       // streams in, streams out
  Tensor d_output, d_input;   // their gradients
  std::vector<Tensor> saved;  // laid out by Stage::SavedSpecs
};

// Hears from a stage what concerns its parameters while it computes. Ranges: indices in the
// ParameterStore.
class StageObserver {
 public:
  virtual ~StageObserver() = default;
  // Before a pass uses these values for the first time; returns when they are there.
  virtual void ValuesNeeded(Range parameters) = 0;
  // A training step will not touch these gradients any more: the last micro-batch has added its
  // part. A stage may tell of each parameter once per step, or not at all: when it is through, all
  // are complete.
  virtual void GradientsReady(Range parameters) = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;
  // The boundary tensors' spec; the same on every stage of the model.
  virtual TensorSpec BoundarySpec() const = 0;
  virtual bool has_previous() const = 0;  // false: reads tokens instead of slot.input
  virtual bool has_next() const = 0;      // false: ends in the loss instead of slot.output
  // What a slot must hold besides the boundary tensors.
  virtual std::vector<TensorSpec> SavedSpecs() const = 0;

  virtual void Forward(int micro_batch, Slot& slot) = 0;
  virtual void BackwardInput(int micro_batch, Slot& slot) = 0;
  virtual void BackwardWeight(int micro_batch, Slot& slot) = 0;
};

}  // namespace twinstream
