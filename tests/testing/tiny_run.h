// A tiny job on random tokens, on any layout: the real trainer, ranks as threads, from a seed or a
// checkpoint, as `twinstream train` does it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/token_dataset.h"
#include "launch/trainer.h"
#include "proto/job.pb.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/whole_tensors.h"

namespace twinstream::testing {

// Four layers of width 32, four heads, a prime vocabulary, 12 sequences of 16 per batch, two
// streams, SHUFFLED data of 47 windows, a learning rate that warms up and falls. Unresolved.
JobSpec TinyJob();

struct Layout {
  int tensor = 1, context = 1, pipeline = 1, data = 1;
  bool sequence_parallel = false;
  int expert = 1;
  int virtual_stages = 1;
  ParallelSpec::Schedule schedule = ParallelSpec::ONE_F_ONE_B;
};
// The pipelines of `pipeline` ranks and at most `stages` stages: every schedule of the enum, with
// as many virtual stages as it may have.
std::vector<Layout> Pipelines(int pipeline, int stages);
ParallelSpec SpecOf(const Layout& layout);
// The job on this layout, resolved. Dies if `validate` would refuse it.
JobSpec OnLayout(JobSpec job, const Layout& layout);
// "t2c1p1d2e1s", for names of tests; of a pipeline "t1c1p2d1e1v2_INTERLEAVED".
std::string NameOf(const Layout& layout);

// The job's data.train, from random tokens in a file of its own.
class TinyData {
 public:
  explicit TinyData(const JobSpec& job);
  const TokenDataset& dataset() const { return *dataset_; }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<TokenDataset> dataset_;
};

struct RunSpan {
  int64_t first = 1, last = 1;  // updates to do; none when last < first
  std::string load;             // step directory; empty: weights from the seed
  std::string save;             // checkpoint directory for the state after `last`; empty: not saved
  ExecutionOptions execution;
  double timeout_seconds = 60;  // of a rank that waits for another
  DeviceMaker make_device = CpuDevices();
  std::function<void(Trainer&, int64_t step)> before_step;  // called on every rank; empty: nothing
};

struct RunRecord {
  std::vector<double> losses, gradient_norms;  // per update, before it
  WholeTensors state;          // weights, "adam_m.*" and "adam_v.*" after the last update
  int replicas = 0;            // boxes that a second or further rank holds too
  int unequal_replicas = 0;    // those of them that differ in some bit
  int micro_batches_held = 0;  // most at a time on any rank
  int64_t replayed_steps = 0;  // the same on every rank
  // MoE: of the last update.
  std::vector<int64_t> expert_tokens;
  double expert_imbalance = 0;
};

// Does the span's updates on the job's ranks. job: resolved, of TinyJob's sequence and vocabulary.
RunRecord RunSteps(const JobSpec& job, const RunSpan& span);

// Largest relative difference of losses or norms; infinite when the numbers of updates differ.
double LargestRelative(const std::vector<double>& a, const std::vector<double>& b);
// Largest |a - b| of tensors whose name begins with `prefix` over the tensor's largest |b|.
double LargestOfTensor(const WholeTensors& a, const WholeTensors& b, const std::string& prefix);
// Largest |a - b| of weights.
double LargestOfWeights(const WholeTensors& a, const WholeTensors& b);

// Whether the long versions of the matrices are wanted (environment TWINSTREAM_EXHAUSTIVE).
bool Exhaustive();

}  // namespace twinstream::testing
