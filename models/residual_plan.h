// ResidualPlan: what each residual scheme does around each block: the one table
// (docs/residual.md has the equations side by side).
#pragma once

#include <string>
#include <vector>

#include "core/ops.h"
#include "proto/job.pb.h"

namespace twinstream {

// A read and the names of its weights (empty where the read has no such weight).
struct ReadRule {
  ResidualRead read;
  std::string x_weight, y_weight, input_weight;
};

struct WriteRule {
  ResidualWrite write;
  std::string output_weight;
};

// One residual block: how it reads the streams and how it writes them.
struct BlockRule {
  ReadRule read;
  WriteRule write;
};

struct ResidualPlan {
  // S: streams that go from layer to layer. A y beyond them (SPAN_NORM) lives inside a layer: one
  // block sets it, the next one reads it.
  int streams = 1;
  std::vector<BlockRule> blocks;  // attention of layer 0, MLP of layer 0, attention of layer 1, ...
  ReadRule final;                 // what the head reads
  bool qkv_norm = false;          // RMSNorm of q, k and v per head, whatever model.qk_norm says
};

ResidualPlan MakeResidualPlan(const ModelSpec& model);

}  // namespace twinstream
