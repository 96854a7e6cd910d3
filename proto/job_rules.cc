#include "proto/job_rules.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/cuda_rules.h"
#include "proto/job_features.h"
#include "proto/job_spec.h"
#include "proto/layout_rules.h"
#include "proto/problems.h"
#include "proto/text_rules.h"
#include "proto/trace_steps.h"

namespace twinstream {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// ---- One number by itself.

// Closed; `text` completes "it must be ...". NaN and infinities lie in no interval.
struct Interval {
  double least, most;
  const char* text;
};

// Training computes in float32, in which larger numbers are infinite and smaller ones nothing.
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr double kTiny = std::numeric_limits<float>::min();
constexpr Interval kSize = {1, 2147483647, "from 1 to 2147483647"};
constexpr Interval kExtent = {1, 1 << 20, "from 1 to 1048576"};
constexpr Interval kSteps = {1, 0x1p53, "from 1 to 2^53"};
constexpr Interval kCount = {0, 0x1p53, "from 0 to 2^53"};
constexpr Interval kPositive = {kTiny, kLargest, "above 0 and in the range of float32"};
constexpr Interval kNotNegative = {0, kLargest, "at least 0 and in the range of float32"};
constexpr Interval kFraction = {0, 1, "from 0 to 1"};
constexpr Interval kBelowOne = {0, 1 - 0x1p-53, "at least 0 and below 1"};

struct FieldInterval {
  const char* path;
  Interval interval;
};

// Every number of the job except those in repeated fields and train.seed.
constexpr FieldInterval kIntervals[] = {
    {"model.layers", {1, 10000, "from 1 to 10000"}},
    {"model.hidden", kSize},
    {"model.heads", kSize},
    {"model.kv_heads", kSize},
    {"model.head_dim", kSize},
    {"model.ffn", kSize},
    {"model.vocabulary", kSize},
    {"model.sequence", kSize},
    {"model.rope_theta", kPositive},
    {"model.norm_eps", kPositive},
    {"model.moe.experts", {1, 10000, "from 1 to 10000"}},
    {"model.moe.top_k", kSize},
    {"model.moe.load_balance", kNotNegative},
    {"model.moe.router_z", kNotNegative},
    {"model.init.std", kPositive},
    {"parallel.tensor", kExtent},
    {"parallel.pipeline", kExtent},
    {"parallel.data", {0, 1 << 20, "from 0 (whatever is left of the ranks) to 1048576"}},
    {"parallel.context", kExtent},
    {"parallel.expert", kExtent},
    {"parallel.virtual_stages", kExtent},
    {"optimizer.beta1", kBelowOne},
    {"optimizer.beta2", kBelowOne},
    {"optimizer.eps", kPositive},
    {"optimizer.weight_decay", kNotNegative},
    {"optimizer.clip_norm", kNotNegative},
    {"optimizer.peak_lr", kNotNegative},
    {"optimizer.warmup_steps", kCount},
    {"optimizer.final_fraction", kFraction},
    {"optimizer.decay_fraction", kFraction},
    {"train.steps", kSteps},
    {"train.global_batch", kSize},
    {"train.microbatch", kSize},
    {"train.z_loss", kNotNegative},
    {"train.eval_every", kCount},
    {"train.eval_batches", kSize},
    {"train.loss_spike.zscore", kNotNegative},
    {"train.loss_spike.window", kSize},
    {"checkpoint.every_steps", kCount},
    {"checkpoint.keep", kCount},
    {"checkpoint.keep_every", kCount},
    {"metrics.every_steps", kSteps},
    {"metrics.stream_stats_every", kCount},
    // Ranks wait longer than that for a save or for a rank whose core is taken.
    {"runtime.timeout_seconds", {1, kLargest, "at least 1 and in the range of float32"}},
    {"runtime.threads", {0, 4096, "from 0 (chosen by the program) to 4096"}},
};

// Integers stay integers: 2^53 + 1 is no double and would be rounded into an interval.
std::variant<int64_t, double> NumberOf(const Message& message, const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return int64_t{message.GetReflection()->GetInt32(message, field)};
    case FieldDescriptor::CPPTYPE_INT64:
      return int64_t{message.GetReflection()->GetInt64(message, field)};
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return message.GetReflection()->GetDouble(message, field);
    default:
      return std::numeric_limits<double>::quiet_NaN();  // not in kIntervals
  }
}

std::string DigitsOf(int64_t value) { return absl::StrCat(value); }
std::string DigitsOf(double value) { return absl::StrFormat("%.10g", value); }

template <typename Number>
void CheckNumber(Number value, const FieldInterval& rule, Problems* problems) {
  const auto [least, most, text] = rule.interval;
  if (value >= static_cast<Number>(least) && value <= static_cast<Number>(most)) return;
  Add(problems, "%s = %s: it must be %s", rule.path, DigitsOf(value), text);
}

// Looks at fields that are set: a default is right, and a required field that is missing is
// RequiredFields' to name.
void CheckInterval(const JobSpec& job, const FieldInterval& rule, Problems* problems) {
  const Message* message = &job;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(rule.path, '.'))) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (!message->GetReflection()->HasField(*message, field)) return;
    if (field->message_type() != nullptr) {
      message = &message->GetReflection()->GetMessage(*message, field);
      continue;
    }
    std::visit([&](auto value) { CheckNumber(value, rule, problems); }, NumberOf(*message, field));
  }
}

void Intervals(const JobSpec& job, Problems* problems) {
  for (const FieldInterval& rule : kIntervals) CheckInterval(job, rule, problems);
}

// ---- Several fields together. A number that is out of its interval was named above, so these
// rules pass over it.

void RequiredFields(const JobSpec& job, Problems* problems) {
  const ModelSpec& model = job.model();
  const std::initializer_list<std::pair<const char*, bool>> fields = {
      {"model.layers", model.has_layers()},
      {"model.hidden", model.has_hidden()},
      {"model.heads", model.has_heads()},
      {"model.ffn", model.has_ffn()},
      {"model.vocabulary", model.has_vocabulary()},
      {"model.sequence", model.has_sequence()},
      {"model.moe.experts", !model.has_moe() || model.moe().has_experts()},
      {"model.moe.top_k", !model.has_moe() || model.moe().has_top_k()},
      {"train.steps", job.train().has_steps()}};
  for (const auto& [path, present] : fields) {
    if (!present) Add(problems, "%s is missing; it has no default", path);
  }
}

void HeadRules(const ModelSpec& model, Problems* problems) {
  if (!model.has_head_dim() && !Divides(model.heads(), model.hidden())) {
    Add(problems,
        "model.hidden = %d is not a multiple of model.heads = %d; change one of them or set "
        "model.head_dim",
        model.hidden(), model.heads());
  }
  if (!Divides(model.kv_heads(), model.heads())) {
    Add(problems,
        "model.heads = %d is not a multiple of model.kv_heads = %d; every key/value head serves "
        "the same number of query heads",
        model.heads(), model.kv_heads());
  }
  if (model.head_dim() > 0 && model.head_dim() % 2 != 0) {
    Add(problems, "model.head_dim = %d is odd; rotary positions need an even one",
        model.head_dim());
  }
}

void MoeRules(const JobSpec& job, Problems* problems) {
  const int expert = job.parallel().expert();
  if (!job.model().has_moe()) {
    if (expert <= 1) return;
    Add(problems,
        "parallel.expert = %d, but the model has no experts; set it to 1 or give model.moe",
        expert);
    return;
  }
  const MoeSpec& moe = job.model().moe();
  if (moe.experts() > 0 && moe.top_k() > moe.experts()) {
    Add(problems,
        "model.moe.top_k = %d is more than model.moe.experts = %d; a token takes each expert at "
        "most once: make top_k smaller",
        moe.top_k(), moe.experts());
  }
  if (!Divides(expert, moe.experts())) {
    Add(problems,
        "model.moe.experts = %d is not a multiple of parallel.expert = %d; every rank holds "
        "equally many experts: make parallel.expert a divisor of them",
        moe.experts(), expert);
  }
  if (const int64_t mlps = Product({job.model().layers(), moe.experts()}); mlps > 1'000'000) {
    Add(problems,
        "model.layers %d x model.moe.experts %d are more than 1000000 MLPs; have fewer of them",
        job.model().layers(), moe.experts());
  }
  // Positions of routed rows are 32-bit numbers.
  const int64_t routed = Product({job.train().microbatch(), job.model().sequence(), moe.top_k()});
  if (routed > std::numeric_limits<int32_t>::max()) {
    Add(problems,
        "train.microbatch %d x model.sequence %d x model.moe.top_k %d = %d routed tokens are more "
        "than 2147483647; make train.microbatch smaller",
        job.train().microbatch(), job.model().sequence(), moe.top_k(), routed);
  }
}

void TokenFiles(const char* path, const google::protobuf::RepeatedPtrField<TokenFile>& files,
                Problems* problems) {
  for (int k = 0; k < files.size(); ++k) {
    if (files[k].path().empty()) Add(problems, "%s[%d].path is missing; name a file", path, k);
    const double weight = files[k].weight();
    if (!(weight >= kPositive.least && weight <= kPositive.most)) {
      Add(problems, "%s[%d].weight = %g: it must be %s", path, k, weight, kPositive.text);
    }
  }
}

void DataRules(const JobSpec& job, Problems* problems) {
  if (job.data().train().empty()) {
    Add(problems, "data.train is missing; name at least one file: train { path: \"...\" }");
  }
  TokenFiles("data.train", job.data().train(), problems);
  TokenFiles("data.validation", job.data().validation(), problems);
  if (job.data().format() == DataSpec::TOKENS_U16 && job.model().vocabulary() > 65536) {
    Add(problems,
        "model.vocabulary = %d does not fit data.format = TOKENS_U16, whose tokens are below "
        "65536; use TOKENS_U32",
        job.model().vocabulary());
  }
}

// The rate would jump from peak_lr into the middle of the decay.
void LearningRateRules(const JobSpec& job, Problems* problems) {
  const OptimizerSpec& optimizer = job.optimizer();
  if (optimizer.schedule() != OptimizerSpec::WSD || !job.train().has_steps()) return;
  const double steps = static_cast<double>(job.train().steps());
  const double decay = optimizer.decay_fraction() * steps;
  if (static_cast<double>(optimizer.warmup_steps()) + decay < steps + 1) return;
  Add(problems,
      "optimizer.warmup_steps = %d and the decay of schedule WSD over the last %g of train.steps = "
      "%d overlap; make warmup_steps or decay_fraction smaller",
      optimizer.warmup_steps(), decay, job.train().steps());
}

constexpr int64_t kMostTracedSteps = 1000;

void TraceRules(const JobSpec& job, Problems* problems) {
  const std::string& text = job.metrics().trace_steps();
  const absl::StatusOr<TraceSteps> steps = TraceSteps::Parse(text);
  if (!steps.ok()) {
    Add(problems, "metrics.trace_steps = \"%s\": %s", absl::CHexEscape(text),
        steps.status().message());
    return;
  }
  if (job.train().steps() >= 1 && steps->last() > job.train().steps()) {
    Add(problems,
        "metrics.trace_steps = \"%s\" reaches beyond train.steps = %d; trace steps up to that, or "
        "train longer",
        text, job.train().steps());
  }
  const int64_t traced = steps->CountWithin(1, job.train().steps());
  if (traced > kMostTracedSteps) {
    Add(problems, "metrics.trace_steps = \"%s\" are %d steps; trace at most %d", text, traced,
        kMostTracedSteps);
    return;
  }
  // Every rank keeps them in memory: forward, backward, messages and waits of each micro-batch.
  constexpr int64_t kSpansOfAMicroBatch = 16, kMostSpans = 2000000;
  const int64_t pass = Product({job.train().microbatch(), job.parallel().data()});
  const int64_t micro_batches = pass == 0 ? 0 : job.train().global_batch() / pass;
  const int64_t of_a_step =
      Product({micro_batches, job.parallel().virtual_stages(), kSpansOfAMicroBatch});
  if (of_a_step == 0 || traced <= kMostSpans / of_a_step) return;
  Add(problems,
      "metrics.trace_steps = \"%s\" are %d steps of %d micro-batches x %d stages per rank: about "
      "%d spans, but at most %d are kept; trace %d steps at most",
      text, traced, micro_batches, job.parallel().virtual_stages(), Product({traced, of_a_step}),
      kMostSpans, kMostSpans / of_a_step);
}

// Sizes that are fine one by one and too large together: byte offsets must stay below 2^62.
void SizeLimits(const JobSpec& job, Problems* problems) {
  const ModelSpec& model = job.model();
  const TrainSpec& train = job.train();
  const int64_t experts = model.has_moe() ? model.moe().experts() : 1;
  using Factors = std::vector<std::pair<const char*, int64_t>>;
  const Factors products[] = {
      {{"model.vocabulary", model.vocabulary()}, {"model.hidden", model.hidden()}},
      {{"model.layers", model.layers()},
       {"model.heads", model.heads()},
       {"model.head_dim", model.head_dim()},
       {"model.hidden", model.hidden()}},
      {{"model.layers", model.layers()},
       {"experts", experts},
       {"model.ffn", model.ffn()},
       {"model.hidden", model.hidden()}},
      {{"train.microbatch", train.microbatch()},
       {"model.sequence", model.sequence()},
       {"model.vocabulary", model.vocabulary()}},
      {{"train.microbatch", train.microbatch()},
       {"model.sequence", model.sequence()},
       {"model.ffn", model.ffn()}},
      {{"train.steps", train.steps()},
       {"train.global_batch", train.global_batch()},
       {"model.sequence", model.sequence()}}};
  for (const Factors& factors : products) {
    double product = 1;
    for (const auto& [path, value] : factors) product *= static_cast<double>(value);
    if (product <= 0x1p60) continue;
    Add(problems, "%s is more than 2^60 elements; make one of them smaller",
        absl::StrJoin(factors, " x ", [](std::string* out, const auto& factor) {
          absl::StrAppend(out, factor.first, " ", factor.second);
        }));
  }
}

}  // namespace

std::vector<std::string> JobProblems(const JobSpec& asked, int ranks) {
  const JobSpec job = ResolveJobSpec(asked, ranks);
  Problems problems;
  RequiredFields(job, &problems);
  Intervals(asked, &problems);
  HeadRules(job.model(), &problems);
  if (job.train().device() == TrainSpec::CUDA) CudaProblems(job, &problems);
  MoeRules(job, &problems);
  DataRules(job, &problems);
  LearningRateRules(job, &problems);
  LayoutProblems(job, ranks, &problems);
  if (ranks > 0 || asked.parallel().data() > 0) ExpertRankProblems(job.parallel(), &problems);
  TraceRules(job, &problems);
  SizeLimits(job, &problems);
  for (std::string& problem : TextProblems(asked)) problems.push_back(std::move(problem));
  for (std::string& problem : PlaceProblems(job)) problems.push_back(std::move(problem));
  for (std::string& problem : FeaturesNotBuilt(job)) problems.push_back(std::move(problem));
  return problems;
}

bool FitsCuda(const JobSpec& job) {
  Problems problems;
  CudaProblems(job, &problems);
  return problems.empty();
}

std::vector<std::string> TokenizerProblems(const JobSpec& job) {
  Problems problems;
  if (job.data().tokenizer() == "bytes" && job.model().vocabulary() < 256) {
    Add(&problems,
        "model.vocabulary = %d is too small for data.tokenizer = \"bytes\", which needs 256",
        job.model().vocabulary());
  }
  return problems;
}

}  // namespace twinstream
