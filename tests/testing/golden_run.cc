#include "tests/testing/golden_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

constexpr double kLearningRate = 1e-2;  // of all golden files

// One file of T + 1 tokens is one window: files in order are the sequences in order.
TokenDatasetOptions WriteTokens(const Golden& golden, const std::string& directory) {
  const Shape shape = golden.ShapeOf("tokens");
  const std::vector<int32_t> tokens = golden.Tokens();
  TokenDatasetOptions options = {.name = "golden",
                                 .sequence = golden.Integer("seq"),
                                 .vocabulary = golden.Integer("vocab"),
                                 .order = TokenOrder::kSequential};
  const int64_t window = shape[2];
  for (int64_t s = 0; s < shape[0] * shape[1]; ++s) {
    const std::string path = absl::StrCat(directory, "/", s, ".bin");
    std::ofstream file(path, std::ios::binary);
    for (int64_t t = 0; t < window; ++t) {
      const int32_t token = tokens[static_cast<size_t>(s * window + t)];
      const char bytes[2] = {static_cast<char>(token & 0xFF), static_cast<char>(token >> 8)};
      file.write(bytes, 2);
    }
    options.files.push_back({.path = path});
  }
  return options;
}

// Every way to write `ranks` as a product of the axes.
std::vector<GridShape> Shapes(int ranks) {
  std::vector<GridShape> shapes;
  for (int tensor = 1; tensor <= ranks; ++tensor) {
    for (int context = 1; tensor * context <= ranks; ++context) {
      for (int pipeline = 1; tensor * context * pipeline <= ranks; ++pipeline) {
        const int others = tensor * context * pipeline;
        if (ranks % others != 0) continue;
        shapes.push_back(
            {.tensor = tensor, .context = context, .data = ranks / others, .pipeline = pipeline});
      }
    }
  }
  return shapes;
}

}  // namespace

std::vector<std::string> DenseGoldenFiles() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(GoldenDirectory())) {
    const std::string name = file.path().stem().string();
    if (file.path().extension() == ".safetensors" && absl::StartsWith(name, "lm_")) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> MoeGoldenFiles() { return {"moe_pre_norm", "moe_siamese_hybrid_pre"}; }

GoldenRun::GoldenRun(const std::string& name) : golden_(name) {
  absl::StatusOr<TokenDataset> dataset =
      TokenDataset::Open(WriteTokens(golden_, directory_.path()));
  Check(dataset.ok(), "%s", dataset.status().ToString());
  dataset_ = std::make_unique<TokenDataset>(*std::move(dataset));
}

JobSpec GoldenRun::Job(const ParallelSpec& parallel, int64_t microbatch, int ranks) const {
  JobSpec job;
  ModelSpec& model = *job.mutable_model();
  ModelSpec::Residual residual = {};
  Check(ModelSpec::Residual_Parse(golden_.Metadata("scheme"), &residual), "scheme %s",
        golden_.Metadata("scheme"));
  model.set_residual(residual);
  model.set_layers(golden_.Integer("layers"));
  model.set_hidden(golden_.Integer("dim"));
  model.set_heads(golden_.Integer("heads"));
  model.set_kv_heads(golden_.Integer("kv_heads"));
  model.set_head_dim(golden_.Integer("head_dim"));
  model.set_ffn(golden_.Integer("ffn"));
  model.set_vocabulary(golden_.Integer("vocab"));
  model.set_sequence(golden_.Integer("seq"));
  model.set_norm_eps(golden_.Real("eps"));
  model.set_rope_theta(golden_.Real("rope_theta"));
  model.set_tied_embeddings(golden_.Metadata("tied") == "True");
  model.set_qk_norm(golden_.Metadata("qk_norm") == "True");
  if (golden_.Integer("experts") > 0) {
    MoeSpec& moe = *model.mutable_moe();
    moe.set_experts(golden_.Integer("experts"));
    moe.set_top_k(golden_.Integer("top_k"));
    moe.set_load_balance(golden_.Real("lb_coef"));
    moe.set_router_z(golden_.Real("router_z"));
  }
  job.set_name("golden");
  job.mutable_data()->add_train()->set_path("tokens.bin");
  *job.mutable_parallel() = parallel;
  OptimizerSpec& optimizer = *job.mutable_optimizer();
  optimizer.set_peak_lr(kLearningRate);
  optimizer.set_schedule(OptimizerSpec::CONSTANT);
  TrainSpec& train = *job.mutable_train();
  train.set_steps(updates());
  train.set_global_batch(golden_.Integer("batch"));
  train.set_microbatch(microbatch);
  train.set_z_loss(golden_.Real("z_loss"));
  return ResolveJobSpec(job, ranks);
}

std::vector<JobSpec> GoldenRun::LegalJobs(int ranks) const {
  std::vector<JobSpec> jobs;
  for (const GridShape& shape : Shapes(ranks)) {
    for (bool sequence_parallel : {false, true}) {
      if (sequence_parallel && shape.tensor == 1) continue;  // says nothing without tensor ranks
      for (int64_t microbatch = 1; microbatch <= golden_.Integer("batch"); ++microbatch) {
        for (int expert = 1; expert <= shape.data; ++expert) {
          ParallelSpec parallel;
          parallel.set_tensor(shape.tensor);
          parallel.set_context(shape.context);
          parallel.set_pipeline(shape.pipeline);
          parallel.set_data(shape.data);
          parallel.set_expert(expert);
          parallel.set_sequence_parallel(sequence_parallel);
          const JobSpec job = Job(parallel, microbatch, ranks);
          if (JobProblems(job, ranks).empty()) jobs.push_back(job);
        }
      }
    }
  }
  return jobs;
}

void GoldenRun::FillWeights(Trainer& trainer, Device& device) const {
  for (const Piece& piece : trainer.WeightPieces()) {
    FillFrom(golden_.Floats("param." + piece.name), piece, device);
  }
}

TrainedRun GoldenRun::Train(const JobSpec& job, const DeviceMaker& make_device) const {
  TrainedRun run;
  std::mutex mutex;
  const int ranks = GridShape::From(job.parallel()).ranks();
  RunRanks(ranks, [&](Transport& transport) {
    const std::unique_ptr<Device> device = make_device(transport.rank());
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    FillWeights(trainer, *device);
    const BatchLoader loader(*dataset_, trainer.batch_shape());
    HostBatch& batch = trainer.batch();
    for (int64_t update = 1; update <= updates(); ++update) {
      const absl::Status loaded =
          loader.Load((update - 1) * job.train().global_batch(), absl::MakeSpan(batch.tokens),
                      absl::MakeSpan(batch.targets));
      Check(loaded.ok(), "%s", loaded.ToString());
      const StepResult result = trainer.Step(update, kLearningRate, false);
      const std::lock_guard<std::mutex> lock(mutex);
      if (update == 1) {
        Collect(trainer.optimizer().GradientPieces(), *device, &run.gradients);
        run.first = result;
      }
      if (transport.rank() == 0) {
        run.losses.push_back(result.loss);
        run.gradient_norms.push_back(result.gradient_norm);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    std::vector<Piece> weights = trainer.optimizer().OwnedPieces();
    std::erase_if(weights, [](const Piece& piece) { return piece.name.rfind("adam_", 0) == 0; });
    Collect(weights, *device, &run.weights);
    run.activations_in_flight =
        std::max<double>(run.activations_in_flight, trainer.engine().peak_slots_seen());
  });
  return run;
}

std::string LayoutName(const JobSpec& job) {
  const ParallelSpec& parallel = job.parallel();
  return absl::StrCat(
      "tensor ", parallel.tensor(), parallel.sequence_parallel() ? " sequence-parallel" : "",
      " context ", parallel.context(), " pipeline ", parallel.pipeline(), " data ", parallel.data(),
      " expert ", parallel.expert(), " microbatch ", job.train().microbatch(), " ",
      ParallelSpec::Schedule_Name(parallel.schedule()), " virtual_stages ",
      parallel.virtual_stages());
}

Deviations Compare(const TrainedRun& run, const Golden& golden) {
  Deviations worst;
  const auto raise = [](double& to, double value) {
    to = std::isnan(value) || value > to ? value : to;
  };
  const std::vector<double> losses = golden.Doubles("train.loss"),
                            norms = golden.Doubles("train.grad_norm");
  for (size_t s = 0; s < losses.size(); ++s) {
    raise(worst.loss, std::abs(run.losses.at(s) / losses[s] - 1));
    raise(worst.norm, std::abs(run.gradient_norms.at(s) / norms[s] - 1));
  }
  for (const std::string& name : golden.Names("param")) {
    const std::vector<double> gradient = golden.Doubles("grad." + name),
                              weight = golden.Doubles("final." + name);
    const std::vector<float>&run_gradient = run.gradients.at(name),
          &run_weight = run.weights.at(name);
    double largest = 0;
    for (double g : gradient) largest = std::max(largest, std::abs(g));
    for (size_t i = 0; i < gradient.size(); ++i) {
      raise(worst.gradient,
            std::abs(static_cast<double>(run_gradient.at(i)) - gradient[i]) / largest);
      raise(worst.weight,
            std::abs(static_cast<double>(run_weight.at(i)) - weight[i]) / kLearningRate);
    }
  }
  return worst;
}

}  // namespace twinstream::testing
