// Optimizer: AdamW on float32 master weights, sharded over the data axis (ZeRO-1), with global-norm
// clipping. Rows of each parameter's local tensor are split over the data ranks as evenly as they
// go (a rank may hold none).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/parameter_store.h"
#include "parallel/process_grid.h"
#include "proto/job.pb.h"

namespace twinstream {

class Optimizer {
 public:
  // model_parameters: names of all parameters of the whole model, in model order, the same on every
  // rank; the global norm is summed in this order, so the layout changes at most its last bits.
  Optimizer(const OptimizerSpec& spec, bool shard, ParameterStore& parameters,
            const ProcessGrid& grid, Device& device, std::vector<std::string> model_parameters);

  // Bytes that Materialize will allocate on this rank.
  int64_t state_bytes() const;
  int64_t scratch_bytes() const;
  void Materialize();  // after ParameterStore::Materialize

  // Makes gradients whole: sums over tensor where a parameter says so, over the tied stages, then
  // reduce-scatters over data. Afterwards this rank's rows hold the sum over all data ranks.
  // Collective.
  void Reduce();
  // L2 norm of the whole model's gradient, each element counted once; the same bits on every rank.
  // After Reduce.
  double GradientNorm();
  // One AdamW update of this rank's rows with factor min(1, clip / (norm + 1e-6)), then all-gather
  // of the values. `update`: 1 for the first.
  void Step(int64_t update, double learning_rate, double gradient_norm);

  // What a checkpoint must hold, each element once over all ranks: values of primary parameters and
  // their moments
  // ("adam_m.NAME", "adam_v.NAME"), this rank's rows.
  std::vector<Piece> OwnedPieces();
  // What a load must fill on this rank: all values (replicas included) and this rank's moments.
  std::vector<Piece> NeededPieces();

 private:
  // See optimizer.cc.
};

}  // namespace twinstream
