// A golden file's training run on any layout: the real trainer, ranks as threads, samples through
// real token files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/token_dataset.h"
#include "launch/trainer.h"
#include "proto/job.pb.h"
#include "tests/testing/golden.h"
#include "tests/testing/rank_devices.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/whole_tensors.h"

namespace twinstream::testing {

// Names of the golden files of dense models, sorted.
std::vector<std::string> DenseGoldenFiles();
std::vector<std::string> MoeGoldenFiles();

struct TrainedRun {
  std::vector<double> losses, gradient_norms;  // per update, before it
  StepResult first;                            // of the first update
  WholeTensors gradients;                      // of the first update
  WholeTensors weights;                        // after the last update
  double activations_in_flight = 0;            // most slots in use on any rank
};

class GoldenRun {
 public:
  explicit GoldenRun(const std::string& name);

  const Golden& golden() const { return golden_; }
  int64_t updates() const { return golden_.ShapeOf("tokens")[0]; }
  // The file's job, resolved for a layout. train.initial_weights is unset: Train copies param.* in.
  JobSpec Job(const ParallelSpec& parallel, int64_t microbatch, int ranks) const;
  // Every layout of `ranks` ranks that validate accepts, with every microbatch.
  std::vector<JobSpec> LegalJobs(int ranks) const;
  // param.* into this rank's part of a model.
  void FillWeights(Trainer& trainer, Device& device) const;
  // Trains on job.parallel's ranks from param.*.
  TrainedRun Train(const JobSpec& job, const DeviceMaker& make_device = CpuDevices()) const;

 private:
  Golden golden_;
  TemporaryDirectory directory_;
  std::unique_ptr<TokenDataset> dataset_;  // one file per sequence, in order
};

// "tensor 2 sp pipeline 2 data 1 microbatch 2 GPIPE"
std::string LayoutName(const JobSpec& job);

// Largest deviations of a run from the golden file, in the units of their limits.
struct Deviations {
  double loss = 0;      // relative
  double norm = 0;      // relative
  double gradient = 0;  // of the tensor's largest element
  double weight = 0;    // in learning rates
};
Deviations Compare(const TrainedRun& run, const Golden& golden);

}  // namespace twinstream::testing
