#include "proto/cuda_rules.h"

#include <algorithm>
#include <cstdint>

namespace twinstream {
namespace {

// A card's kernels hold a head in one block of threads, and work in memory of a fixed size: tests
// hold it (core/cuda/workspace.h) against these limits.
constexpr int64_t kLargestHead = 512, kMostExperts = 2048;
constexpr int64_t kLargestHidden = 1'000'000, kMostTokens = 1'000'000, kMostQueries = 8'000'000;

int64_t AtLeastOne(int64_t number) { return std::max<int64_t>(1, number); }

void ModelLimits(const ModelSpec& model, Problems* problems) {
  if (model.head_dim() > kLargestHead) {
    Add(problems,
        "model.head_dim = %d is more than %d, the most that train.device = CUDA takes; make it "
        "smaller, with more model.heads, or set train.device to CPU",
        model.head_dim(), kLargestHead);
  }
  if (model.hidden() > kLargestHidden) {
    Add(problems,
        "model.hidden = %d is more than %d, the most that train.device = CUDA takes; make it "
        "smaller, or set train.device to CPU",
        model.hidden(), kLargestHidden);
  }
  if (model.moe().experts() > kMostExperts) {
    Add(problems,
        "model.moe.experts = %d is more than %d, the most that train.device = CUDA takes; make it "
        "smaller, or set train.device to CPU",
        model.moe().experts(), kMostExperts);
  }
}

void TokenLimits(const JobSpec& job, Problems* problems) {
  const ModelSpec& model = job.model();
  const int64_t context = AtLeastOne(job.parallel().context());
  const int64_t tokens = Product({job.train().microbatch(), model.sequence()}) / context;
  if (tokens > kMostTokens) {
    Add(problems,
        "train.microbatch %d x model.sequence %d / parallel.context %d = %d tokens are more than "
        "%d, the most that train.device = CUDA takes; make train.microbatch or "
        "model.sequence smaller or parallel.context larger, or set train.device to CPU",
        job.train().microbatch(), model.sequence(), context, tokens, kMostTokens);
  }
  // Of one key/value head on one rank; ranks beyond those heads share them.
  const int64_t tensor = job.parallel().tensor();
  const int64_t group = model.heads() / AtLeastOne(std::max<int64_t>(model.kv_heads(), tensor));
  const int64_t queries = Product({group, model.sequence() / context});
  if (queries > kMostQueries) {
    Add(problems,
        "model.sequence %d / parallel.context %d x %d of model.heads for each key/value head "
        "(model.heads %d / the larger of model.kv_heads %d and parallel.tensor %d) = %d queries "
        "are more than %d, the most that train.device = CUDA takes; make model.kv_heads, "
        "parallel.tensor or parallel.context larger or model.sequence smaller, or set train.device "
        "to CPU",
        model.sequence(), context, group, model.heads(), model.kv_heads(), tensor, queries,
        kMostQueries);
  }
}

}  // namespace

void CudaProblems(const JobSpec& job, Problems* problems) {
  ModelLimits(job.model(), problems);
  TokenLimits(job, problems);
}

}  // namespace twinstream
