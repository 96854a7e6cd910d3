#include "proto/layout_rules.h"

#include <cstdint>

namespace twinstream {
namespace {

// data is 0 when the other axes do not divide the ranks.
void RankRules(const ParallelSpec& parallel, int ranks, Problems* problems) {
  const int64_t others = Product({parallel.tensor(), parallel.context(), parallel.pipeline()});
  if (others == 0 || ranks < 1) return;
  if (parallel.data() == 0) {
    Add(problems,
        "the number of ranks, %d, is not a multiple of parallel.tensor %d x context %d x pipeline "
        "%d "
        "= %d; start a multiple of that, or change the layout",
        ranks, parallel.tensor(), parallel.context(), parallel.pipeline(), others);
  }
  const int64_t needed = Product({others, parallel.data()});
  if (needed != 0 && needed != ranks) {
    Add(problems,
        "parallel.tensor %d x context %d x pipeline %d x data %d = %d, but the number of ranks is "
        "%d; start %d, or set parallel.data to 0 for whatever is left of them",
        parallel.tensor(), parallel.context(), parallel.pipeline(), parallel.data(), needed, ranks,
        needed);
  }
}

void TensorRules(const JobSpec& job, Problems* problems) {
  const ModelSpec& model = job.model();
  const int64_t tensor = job.parallel().tensor();
  if (!Divides(tensor, model.heads())) {
    Add(problems,
        "parallel.tensor = %d does not divide model.heads = %d; use a divisor of it, or other "
        "heads",
        tensor, model.heads());
  }
  const bool grouped = model.kv_heads() != model.heads();
  if (grouped && !Divides(tensor, model.kv_heads()) && !Divides(model.kv_heads(), tensor)) {
    Add(problems,
        "parallel.tensor = %d and model.kv_heads = %d: one must divide the other, so that ranks "
        "share out the key/value heads or share one",
        tensor, model.kv_heads());
  }
  const int64_t context = job.parallel().context(), ranks = Product({tensor, context});
  const int64_t tokens = Product({job.train().microbatch(), model.sequence()});
  if (job.parallel().sequence_parallel() && !Divides(ranks, tokens)) {
    Add(problems,
        "parallel.sequence_parallel shares out train.microbatch %d x model.sequence %d = %d tokens "
        "over parallel.tensor %d x context %d = %d ranks, which does not divide them; "
        "change one of the four, or set sequence_parallel to false",
        job.train().microbatch(), model.sequence(), tokens, tensor, context, ranks);
  }
}

void ContextRules(const JobSpec& job, Problems* problems) {
  const int64_t context = job.parallel().context(), sequence = job.model().sequence();
  if (context == 1 || Divides(2 * context, sequence)) return;
  Add(problems,
      "model.sequence = %d is not a multiple of 2 x parallel.context %d = %d, the number of equal "
      "blocks that context ranks cut it into; change one of them",
      sequence, context, 2 * context);
}

void VirtualStageRules(const ParallelSpec& parallel, Problems* problems) {
  if (!HasVirtualStages(parallel.schedule())) {
    if (parallel.virtual_stages() <= 1) return;
    Add(problems,
        "parallel.virtual_stages = %d needs parallel.schedule = INTERLEAVED, not %s; set that, or "
        "parallel.virtual_stages to 1",
        parallel.virtual_stages(), ParallelSpec::Schedule_Name(parallel.schedule()));
    return;
  }
  if (parallel.virtual_stages() == 1) {
    Add(problems,
        "parallel.schedule = %s needs parallel.virtual_stages of at least 2, not 1; set it, or use "
        "ONE_F_ONE_B",
        ParallelSpec::Schedule_Name(parallel.schedule()));
  }
  if (parallel.pipeline() == 1) {
    Add(problems,
        "parallel.schedule = %s needs parallel.pipeline of at least 2, not 1; set it, or use "
        "ONE_F_ONE_B with virtual_stages 1",
        ParallelSpec::Schedule_Name(parallel.schedule()));
  }
}

void PipelineRules(const JobSpec& job, Problems* problems) {
  const int64_t layers = job.model().layers(), pipeline = job.parallel().pipeline(),
                chunks = job.parallel().virtual_stages(), stages = Product({pipeline, chunks});
  if (layers < 1 || stages <= layers) return;
  if (chunks == 1) {
    Add(problems,
        "parallel.pipeline = %d is more than model.layers = %d; every stage holds at least one "
        "layer",
        pipeline, layers);
  } else {
    Add(problems,
        "parallel.pipeline %d x virtual_stages %d = %d stages are more than model.layers = %d; "
        "every stage holds at least one layer: make one of the two smaller",
        pipeline, chunks, stages, layers);
  }
}

void RecomputeRules(const ParallelSpec& parallel, Problems* problems) {
  if (parallel.schedule() != ParallelSpec::ZERO_BUBBLE) return;
  if (parallel.recompute() == ParallelSpec::NONE) return;
  Add(problems,
      "parallel.recompute = %s frees what parallel.schedule = ZERO_BUBBLE keeps for its late "
      "weight gradients; use recompute NONE, or schedule GPIPE, ONE_F_ONE_B or "
      "INTERLEAVED",
      ParallelSpec::Recompute_Name(parallel.recompute()));
}

constexpr int64_t kMostMicrobatches = 65536;

// Data ranks count as 1 while nobody knows their number.
void BatchRules(const JobSpec& job, Problems* problems) {
  const TrainSpec& train = job.train();
  const int data_ranks = job.parallel().data();
  const int64_t pass = Product({train.microbatch(), data_ranks});
  if (!Divides(pass, train.global_batch())) {
    Add(problems,
        "train.global_batch = %d is not a multiple of train.microbatch %d x %d data ranks = %d; "
        "make it one, or train.microbatch smaller",
        train.global_batch(), train.microbatch(), data_ranks, pass);
  } else if (pass > 0 && train.global_batch() / pass > kMostMicrobatches) {
    Add(problems,
        "train.global_batch = %d is %d micro-batches of train.microbatch %d x %d data ranks; at "
        "most %d can be scheduled in a step: make train.microbatch larger",
        train.global_batch(), train.global_batch() / pass, train.microbatch(), data_ranks,
        kMostMicrobatches);
  }
}

}  // namespace

bool HasVirtualStages(ParallelSpec::Schedule schedule) {
  switch (schedule) {
    case ParallelSpec::INTERLEAVED:
      return true;
    case ParallelSpec::GPIPE:
    case ParallelSpec::ONE_F_ONE_B:
    case ParallelSpec::ZERO_BUBBLE:
      return false;
  }
  return false;
}

void LayoutProblems(const JobSpec& job, int ranks, Problems* problems) {
  RankRules(job.parallel(), ranks, problems);
  TensorRules(job, problems);
  ContextRules(job, problems);
  VirtualStageRules(job.parallel(), problems);
  PipelineRules(job, problems);
  RecomputeRules(job.parallel(), problems);
  BatchRules(job, problems);
}

void ExpertRankProblems(const ParallelSpec& parallel, Problems* problems) {
  if (Divides(parallel.expert(), parallel.data())) return;
  Add(problems,
      "parallel.expert = %d does not divide parallel.data = %d; experts are spread over groups of "
      "that many data ranks: set it to a divisor of parallel.data",
      parallel.expert(), parallel.data());
}

}  // namespace twinstream
