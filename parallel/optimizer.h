// Optimizer: AdamW on float32 master weights with global-norm clipping,
// sharded over each parameter's replicas (ZeRO-1, arXiv 1910.02054): the rows of its local tensor
// are split over them as evenly as they go; a rank may hold none. The master weight of a float32
// value is the value itself; that of a bf16 value is held here, for the same rows as the moments.
//
// Sums over ranks and gathers of new values are posted to the communication thread, so they run
// while the main thread computes: gradients are reduced block by block during the last
// micro-batch's backward, values are gathered while the next forward begins. With or without that
// thread the same sums are taken in the same order, to the last bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/ops.h"
#include "parallel/communication_thread.h"
#include "parallel/parameter_store.h"
#include "proto/job.pb.h"

namespace twinstream {

class Optimizer {
 public:
  // model_parameters: names of all parameters of the whole model, in model order, the same on every
  // rank: the global norm is summed in this order. shard: false keeps all moments on every
  // replica. communication: of a grid for UseOfUpdates of these parameters. All arguments outlive
  // this.
  Optimizer(const OptimizerSpec& spec, bool shard, ParameterStore& parameters,
            CommunicationThread& communication, Device& device,
            const std::vector<std::string>& model_parameters);
  ~Optimizer();  // once all that it posted is done

  // Bytes that Materialize allocates on this rank.
  int64_t state_bytes() const;
  int64_t buffer_bytes() const;
  void Materialize();  // after ParameterStore::Materialize

  // Collectives of one step, in this order.
  // First: starts to make the gradients of this rank's rows whole: sums over the tensor ranks where
  // a parameter says so, and over the replicas, where gradients of bf16 values travel as bf16.
  // Sharded, other rows are unspecified afterwards. Nobody touches these gradients until
  // GradientNorm returns. `parameters`: indices in the ParameterStore; those that were started in
  // this step already are left out, and a tied embedding, since the two stages that hold it are
  // complete at different times.
  void StartReduce(Range parameters);
  // Then, once all stages are complete: the same for a tied embedding, summed over its two stages.
  void StartReduceTied();
  // In place of the two where a replay has done what they had given the device, and after a
  // recording that came to nothing and did none of it.
  void NoteReductions() {
    for (Shard& shard : shards_) shard.reducing = true;
  }
  void ForgetReductions() {
    for (Shard& shard : shards_) shard.reducing = false;
  }
  // Waits for all that was started.
  void WaitForReductions() const { communication_.WaitForAll(); }
  // Second: L2 norm of the whole model's gradient, each element counted once; the same bits on
  // every rank. All reductions were started.
  double GradientNorm();
  // Third: one update (1 is the first) of this rank's rows with clipping factor min(1, clip_norm /
  // (norm + 1e-6)). Starts to gather the values on every replica, in the order of the parameters.
  void Step(int64_t update, double learning_rate, double gradient_norm);
  // Whether this rank has all values that the last Step gave to these parameters; and waiting for
  // them.
  bool HasValues(Range parameters) const;
  void WaitForValues(Range parameters) const;

  // Master weights held here <- f(seed, name, global element), as ParameterStore::Initialize.
  void InitializeMasters(uint64_t seed);

  // What a checkpoint holds: each element of master weights and moments ("adam_m.NAME",
  // "adam_v.NAME") once over all ranks.
  std::vector<Piece> OwnedPieces() const;
  // What a load fills on this rank: all its weights, replicas included, and the moments of its
  // rows.
  std::vector<Piece> NeededPieces() const;
  // Its weights alone: values, and the master weights held here, under the same names.
  std::vector<Piece> WeightPieces() const;
  // After Reduce: the whole gradient, each element once over all ranks, by parameter name.
  std::vector<Piece> GradientPieces() const;

 private:
  // One parameter's share of this rank.
  struct Shard {
    Parameter* parameter;
    int64_t model_index;  // in model_parameters
    Range rows;           // this rank's part of the local rows
    Range updated;        // rows that this rank updates: `rows`, or all of them
    Communicator* replicas;
    std::vector<int64_t> counts;               // elements of every replica's part
    Tensor m, v, master;                       // of `updated`
    size_t counted = 0;                        // how many of counted_ are its
    bool reducing = false;                     // started in the step under way
    CommunicationThread::Number gathered = 0;  // what brings the values of the last Step
  };

  static std::vector<Piece> GradientPiecesOf(const Shard& shard);
  bool HoldsMaster(const Shard& shard) const;
  AdamWItem UpdateOf(const Shard& shard) const;
  std::vector<TensorSpec> StateSpecs(const Shard& shard) const;
  std::vector<TensorSpec> BufferSpecs() const;
  const ProcessGrid& grid() const { return communication_.grid(); }
  CommunicationThread::Number GatherOf(Range parameters) const;
  bool IsGathered(const Shard& shard) const;
  bool Communicates(const Shard& shard) const;
  void PostReduction(Range parameters);
  void ReduceShard(const Shard& shard);
  void GatherShard(const Shard& shard);
  void SumOverTensor(const Parameter& parameter);
  void SumOverStages(const Parameter& parameter);
  void SumOverReplicas(const Shard& shard);
  Tensor OwnRows(const Shard& shard, Tensor updated) const;

  const OptimizerSpec& spec_;
  bool shard_;
  const ParameterStore& parameters_;
  CommunicationThread& communication_;
  Device& device_;
  int64_t model_parameters_;
  std::vector<Shard> shards_;       // [index in the ParameterStore]
  std::vector<AdamWItem> updates_;  // of shards that Step updates together
  std::vector<Tensor> counted_;     // gradients that the norm counts on this rank, shard by shard
  // What is posted.
  const CommunicationThread::Operation reduce_, gather_;
  Storage state_, buffers_;
  Tensor exchange_;  // largest tensor that two ranks add up outside its own memory
  Tensor squares_;   // f64, of the gradients that this rank counts, at most one for every box
  HostArray<double> own_squares_;      // squares_ on the host
  std::vector<double> model_squares_;  // [model_parameters], over all ranks
};

}  // namespace twinstream
