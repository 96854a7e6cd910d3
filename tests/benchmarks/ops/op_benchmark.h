// One operation's benchmark: on which operands, and against which floor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "models/lm_head.h"
#include "proto/job.pb.h"
#include "tests/benchmarks/ops/operands.h"
#include "tests/benchmarks/ops/roofs.h"

namespace twinstream::benchmarks {

// A model's sizes as its operations meet them on some device.
struct OpShape {
  std::string name;
  ModelSpec model;    // resolved, dense, of the default residual scheme
  MoeSpec moe;        // of the same model with experts for MLPs
  int64_t batch = 1;  // B: sequences per micro-batch
  LogitPanels logits = {};

  int64_t rows() const { return batch * model.sequence(); }  // N
};

std::vector<OpShape> OpShapes(const Device& device);  // of all ModelShapes

using PreparedOp = std::function<void()>;  // runs the operation, any number of times

struct OpBenchmark {
  std::string name;  // "ResidualForward/PRE_NORM/mlp"
  DType operands = DType::kF32;
  std::function<PreparedOp(Operands&)> prepare;
};

// The families of operations, at a model's shape, with activations of a dtype. What does not depend
// on that dtype is listed with float32 alone.
std::vector<OpBenchmark> ProductBenchmarks(const OpShape& shape, DType activation);
std::vector<OpBenchmark> ResidualBenchmarks(const OpShape& shape, DType activation);
std::vector<OpBenchmark> AttentionBenchmarks(const OpShape& shape, DType activation);
std::vector<OpBenchmark> MoeBenchmarks(const OpShape& shape, DType activation);
std::vector<OpBenchmark> VocabularyBenchmarks(const OpShape& shape, DType activation);
std::vector<OpBenchmark> ElementwiseBenchmarks(const OpShape& shape, DType activation);

}  // namespace twinstream::benchmarks
