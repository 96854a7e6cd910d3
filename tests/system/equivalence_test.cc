// Whatever options a job combines, its layout computes what one rank computes: combinations in
// which every two values of two options meet, as far as validate lets them.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/expected_rounding.h"
#include "parallel/grid_shape.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "tests/testing/run_checks.h"
#include "tests/testing/tiny_run.h"

namespace twinstream::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kMostRanks = 8;

struct Option {
  std::vector<std::string> values;  // text that is merged into the job
  // Met by every layout in the exhaustive version; of others pairs suffice.
  bool with_every_layout = true;
};
// The index of a value for each option.
using Choice = std::vector<size_t>;

Option EnumValues(const google::protobuf::EnumDescriptor* type, const std::string& before) {
  Option option;
  for (int i = 0; i < type->value_count(); ++i) {
    option.values.push_back(absl::StrCat(before, type->value(i)->name(), " }"));
  }
  return option;
}

// Every schedule on two and on four stages, with as many virtual stages as four layers allow.
Option PipelineValues() {
  Option option = {.values = {""}};
  for (int ranks : {2, 4}) {
    for (const Layout& layout : Pipelines(ranks, 4)) {
      option.values.push_back(
          absl::StrFormat("parallel { pipeline: %d virtual_stages: %d schedule: %s }", ranks,
                          layout.virtual_stages, ParallelSpec::Schedule_Name(layout.schedule)));
    }
  }
  return option;
}

// The scheme first.
std::vector<Option> Options() {
  const std::string moe = "model { moe { experts: 4 top_k: 2 load_balance: 0.1 router_z: 0.01 } }";
  return {
      EnumValues(ModelSpec::Residual_descriptor(), "model { residual: "),
      {.values = {"", moe, moe + " parallel { expert: 2 }"}},
      {.values = {"", "model { kv_heads: 2 }", "model { kv_heads: 1 }"},
       .with_every_layout = false},
      {.values = {"", "model { tied_embeddings: true }"}},
      {.values = {"", "model { qk_norm: true }"}, .with_every_layout = false},
      {.values = {"", "parallel { tensor: 2 }", "parallel { tensor: 4 }"}},
      {.values = {"", "parallel { sequence_parallel: true }"}},
      {.values = {"", "parallel { context: 2 }"}},
      PipelineValues(),
      {.values = {"parallel { data: 1 }", "parallel { data: 2 }", "parallel { data: 3 }"}},
      {.values = {"", "parallel { shard_optimizer: false }"}, .with_every_layout = false},
      EnumValues(ParallelSpec::Recompute_descriptor(), "parallel { recompute: "),
      {.values = {"train { microbatch: 1 }", "train { microbatch: 2 }"}},
      {.values = {"", "train { precision: BF16 }"}, .with_every_layout = false},
  };
}

std::string TextOf(const std::vector<Option>& options, const Choice& choice) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string& text = options[i].values[choice[i]];
    if (!text.empty()) texts.push_back(text);
  }
  return absl::StrJoin(texts, " ");
}

// The job, resolved; nothing where validate refuses it or it takes too many ranks.
std::optional<JobSpec> JobOf(const std::vector<Option>& options, const Choice& choice) {
  JobSpec job = TinyJob();
  const std::string text = TextOf(options, choice);
  Check(google::protobuf::TextFormat::MergeFromString(text, &job), "\"%s\"", text);
  const ParallelSpec& p = job.parallel();
  const int ranks = p.tensor() * p.context() * p.pipeline() * p.data();
  if (ranks > kMostRanks || !JobProblems(job, ranks).empty()) return std::nullopt;
  return ResolveJobSpec(job, ranks);
}

void ExpectOneRanksResult(const JobSpec& job, const std::string& text) {
  SCOPED_TRACE(text);
  JobSpec alone = job;
  // Experts are balanced over the micro-batch of all data ranks.
  alone.mutable_train()->set_microbatch(job.train().microbatch() * job.parallel().data());
  alone.clear_parallel();
  const RunSpan span = {.last = 2};
  const RunRecord run = RunSteps(job, span);
  const RunRecord reference = RunSteps(ResolveJobSpec(alone, 1), span);
  if (job.train().precision() == TrainSpec::FP32) return ExpectWithinRounding(run, reference);
  // Of the first update: Adam takes later ones from weights that are whole learning rates apart.
  const ExpectedRounding expected = ExpectedRoundingOf(job);
  EXPECT_LE(LargestRelative({run.losses[0]}, {reference.losses[0]}), expected.loss);
  EXPECT_LE(LargestRelative({run.gradient_norms[0]}, {reference.gradient_norms[0]}), expected.norm);
  EXPECT_EQ(run.unequal_replicas, 0);
}

// Values a of option i and b of option j, i < j.
using Pair = std::tuple<size_t, size_t, size_t, size_t>;

std::set<Pair> AllPairs(const std::vector<Option>& options) {
  std::set<Pair> pairs;
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t j = i + 1; j < options.size(); ++j) {
      for (size_t a = 0; a < options[i].values.size(); ++a) {
        for (size_t b = 0; b < options[j].values.size(); ++b) pairs.insert({i, a, j, b});
      }
    }
  }
  return pairs;
}

std::vector<Pair> PairsOf(const Choice& choice) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < choice.size(); ++i) {
    for (size_t j = i + 1; j < choice.size(); ++j) pairs.emplace_back(i, choice[i], j, choice[j]);
  }
  return pairs;
}

// Of random legal choices with these two values the one in which most open pairs meet; empty when
// none is found.
Choice BestChoiceWith(const Pair& pair, const std::vector<Option>& options,
                      const std::set<Pair>& open, std::mt19937& random) {
  constexpr int kTries = 400, kCandidates = 12;
  const auto& [i, a, j, b] = pair;
  Choice best;
  int64_t best_pairs = 0;
  int candidates = 0;
  for (int attempt = 0; attempt < kTries && candidates < kCandidates; ++attempt) {
    Choice choice;
    for (const Option& option : options) {
      // Half of the time the first value: most options need others to be off.
      choice.push_back(random() % 2 == 0 ? 0 : random() % option.values.size());
    }
    choice[i] = a;
    choice[j] = b;
    if (!JobOf(options, choice)) continue;
    ++candidates;
    const std::vector<Pair> met = PairsOf(choice);
    const int64_t pairs = std::count_if(met.begin(), met.end(),
                                        [&](const Pair& other) { return open.count(other) > 0; });
    if (pairs <= best_pairs) continue;
    best_pairs = pairs;
    best = choice;
  }
  return best;
}

TEST(Equivalence, EveryTwoOptionsMeet) {
  const std::vector<Option> options = Options();
  std::set<Pair> open = AllPairs(options);
  const size_t all = open.size();
  std::mt19937 random(1);  // NOLINT(cert-msc51-cpp): the same combinations every time
  std::vector<std::string> refused;
  int jobs = 0;
  while (!open.empty()) {
    const Pair pair = *open.begin();
    const Choice choice = BestChoiceWith(pair, options, open, random);
    if (choice.empty()) {
      const auto& [i, a, j, b] = pair;
      refused.push_back(absl::StrCat(options[i].values[a], " with ", options[j].values[b]));
      open.erase(pair);
      continue;
    }
    for (const Pair& met : PairsOf(choice)) open.erase(met);
    ExpectOneRanksResult(*JobOf(options, choice), TextOf(options, choice));
    ++jobs;
  }
  std::printf("%d jobs for %zu pairs; %zu pairs refused, or of more than 8 ranks:\n%s\n", jobs,
              all - refused.size(), refused.size(), absl::StrJoin(refused, "\n").c_str());
  EXPECT_THAT(refused, Each(AnyOf(
                           // Experts are spread over data ranks.
                           AllOf(HasSubstr("expert: 2"), HasSubstr("data: ")),
                           AllOf(HasSubstr("ZERO_BUBBLE"), HasSubstr("recompute: ")),
                           // More than kMostRanks.
                           AllOf(HasSubstr("tensor: 4"), HasSubstr("pipeline: 4")),
                           AllOf(HasSubstr("tensor: 4"), HasSubstr("data: 3")),
                           AllOf(HasSubstr("pipeline: 4"), HasSubstr("data: 3")))));
}

// Calls f for every legal choice whose first `fixed.size()` options are those.
void ForEachJob(const std::vector<Option>& options, const Choice& fixed,
                absl::FunctionRef<void(const JobSpec& job, const std::string& text)> f) {
  if (fixed.size() < options.size()) {
    for (size_t value = 0; value < options[fixed.size()].values.size(); ++value) {
      Choice more = fixed;
      more.push_back(value);
      ForEachJob(options, more, f);
    }
    return;
  }
  const std::optional<JobSpec> job = JobOf(options, fixed);
  if (job) f(*job, TextOf(options, fixed));
}

TEST(Equivalence, EveryLayoutOfTheHybridScheme) {
  const int most_ranks = Exhaustive() ? kMostRanks : 2;
  std::vector<Option> options = Options();
  options.front().values = {"model { residual: SIAMESE_HYBRID_PRE }"};
  for (Option& option : options) {
    if (!option.with_every_layout) option.values.resize(1);
  }
  int jobs = 0;
  ForEachJob(options, {}, [&](const JobSpec& job, const std::string& text) {
    if (GridShape::From(job.parallel()).ranks() > most_ranks) return;
    ExpectOneRanksResult(job, text);
    ++jobs;
  });
  std::printf("%d jobs\n", jobs);
  EXPECT_GT(jobs, Exhaustive() ? 500 : 50);
}

}  // namespace
}  // namespace twinstream::testing
