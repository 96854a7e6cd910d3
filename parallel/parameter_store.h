// ParameterStore: the one list of this rank's parameters. Layers declare, Materialize allocates;
// optimizer, initialisation, checkpoint, gradient norm and counts all walk it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "core/device.h"
#include "core/tensor.h"
#include "parallel/box.h"
#include "parallel/grid_shape.h"

namespace twinstream {

// One box of a parameter that this rank holds.
struct HeldBox {
  Box box;
  // This rank's copy is the one that is saved and counted: exactly one among its replicas on the
  // tensor and pipeline axes. (`ParameterSpec::replicas` hold the same boxes and share this work by
  // rows.)
  bool primary = true;
  float init_gain = 1;  // times ParameterSpec::init_std
};

// Vectors never decay; the embedding does when optimizer.decay_embeddings says so.
enum class WeightDecay { kMatrix, kEmbedding, kVector };

struct ParameterSpec {
  std::string name;  // in checkpoints: "layers.0.mlp.up.weight"
  Shape global;      // whole shape
  // This rank's, one below the other along dimension 0 of `value`. Rows of a tensor of matrices
  // (three dimensions: experts) are its matrices' rows, and each box lies in one matrix.
  std::vector<HeldBox> boxes;
  float init_std = 0;  // truncated normal at 3 standard deviations; 0: all ones
  WeightDecay decay = WeightDecay::kMatrix;
  // The gradient that backward leaves here is a part: the sum over the tensor axis is the gradient.
  // True for norm weights over sharded tokens, for head norms, and for key/value heads that several
  // tensor ranks share.
  bool sum_over_tensor = false;
  // With sum_over_tensor: rows of the global tensor that the tensor ranks share in common (their
  // boxes lie inside `shared`); empty extent: the boxes are the same on every tensor rank.
  Box shared;
  // The ranks that hold the same boxes and see different tokens: gradients are summed over them,
  // and ZeRO-1 splits the rows over them. kReplicas, or kExpertReplicas.
  GridGroup replicas = GridGroup::kReplicas;
  // Tied embedding on first and last stage: both hold it and both have gradients.
  bool sum_over_stages = false;
  // A float32 value whatever the dtype of the store's matrices.
  bool float32 = false;
  // The step's first contribution to the gradient writes all of it (Parameter::AddsToGradient),
  // which saves a pass of zeros over memory and the product's reading them.
  bool first_overwrites = false;
};

struct Parameter {
  ParameterSpec spec;
  // Local shape: rows of all boxes. The gradient is float32; the value of a matrix has the store's
  // dtype (ParameterSpec::float32 apart), that of a vector is float32. A bf16 value is a rounded
  // copy of a float32 master weight, which the optimizer holds.
  Tensor value, gradient;
  int64_t rows() const { return value.dim(0); }
  // Asked once for every contribution, just before it: whether it adds to the gradient instead of
  // writing it.
  bool AddsToGradient() { return std::exchange(contributed, true) || !spec.first_overwrites; }
  bool contributed = false;  // since ParameterStore::ClearGradients
};

// Local shape of a parameter with these boxes: [rows of all boxes, ...].
Shape LocalShape(const ParameterSpec& spec);

// The parts of the parameter's boxes that local rows [rows.begin, rows.end) cover, as pieces of
// `local` (a tensor of the parameter's local shape restricted to those rows: row 0 of `local` is
// local row rows.begin), named `name`. kPrimary leaves out the boxes that another rank's copy
// stands for.
enum class Copies { kAll, kPrimary };
std::vector<Piece> PiecesOf(const Parameter& parameter, const std::string& name, Range rows,
                            Tensor local, Copies copies);

// weights <- f(seed, name, global element), rounded where they are bf16: the same on every layout.
// weights: local rows [rows.begin, rows.end) of the parameter.
void InitializeRows(const ParameterSpec& spec, Range rows, Tensor weights, uint64_t seed,
                    Device& device);

enum class Gradients { kAllocated, kNone };

class ParameterStore {
 public:
  // matrices: dtype of the values of rank 2 and more.
  explicit ParameterStore(DType matrices = DType::kF32) : matrices_(matrices) {}
  // Returns a reference that stays valid for the store's life. Names are unique.
  Parameter& Declare(ParameterSpec spec);
  // Allocates values and, where wanted, gradients, one buffer each. Once, after all declarations.
  void Materialize(Device& device, Gradients gradients);
  // All values: as InitializeRows.
  void Initialize(Device& device, uint64_t seed);
  // Before a step: zeros, but for those that the first contribution overwrites.
  void ClearGradients(const class Ops& ops);

  // All values of this rank, replicas included.
  std::vector<Piece> ValuePieces() const;

  const std::vector<std::unique_ptr<Parameter>>& parameters() const { return parameters_; }
  int64_t size() const { return static_cast<int64_t>(parameters_.size()); }
  DType ValueType(const ParameterSpec& spec) const;
  int64_t value_bytes() const;  // known before Materialize
  int64_t gradient_bytes() const;

 private:
  std::vector<TensorSpec> ValueSpecs() const;
  std::vector<TensorSpec> GradientSpecs() const;

  const DType matrices_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  absl::flat_hash_set<absl::string_view> names_;  // of parameters_
  Storage values_, gradients_;
};

}  // namespace twinstream
