#include "proto/job_rules.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

JobSpec MinimalJob() {
  const absl::StatusOr<JobSpec> job = ParseJobSpec(
      "model { layers: 4 hidden: 32 heads: 4 ffn: 48 vocabulary: 64 sequence: 16 }"
      "data { train { path: 'a.bin' } }"
      "train { steps: 8 }",
      "job.textproto");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

JobSpec With(const std::string& change) {
  JobSpec job = MinimalJob();
  const absl::Status status = ApplyOverrides({change}, &job);
  EXPECT_TRUE(status.ok()) << status;
  return job;
}

TEST(JobRulesTest, ModelDataAndStepsAloneAreAValidJob) {
  for (const int ranks : {0, 1, 3, 8}) {
    EXPECT_THAT(JobProblems(MinimalJob(), ranks), IsEmpty()) << ranks;
    EXPECT_THAT(JobProblems(ResolveJobSpec(MinimalJob(), ranks), ranks), IsEmpty()) << ranks;
  }
}

TEST(JobRulesTest, EveryRequiredFieldOfAnEmptyJobIsNamed) {
  const std::vector<std::string> problems = JobProblems(JobSpec(), 1);
  EXPECT_EQ(problems.size(), 8u);
  for (const char* path : {"model.layers", "model.hidden", "model.heads", "model.ffn",
                           "model.vocabulary", "model.sequence", "train.steps", "data.train"}) {
    EXPECT_THAT(problems, ::testing::Contains(HasSubstr(std::string(path) + " is missing")));
  }
}

TEST(JobRulesTest, FourMistakesGiveFourLines) {
  EXPECT_THAT(
      JobProblems(With("model { kv_heads: 3 } parallel { pipeline: 5 }"
                       "train { microbatch: 2 global_batch: 5 } optimizer { beta1: 1 }"),
                  5),
      UnorderedElementsAre(
          HasSubstr("optimizer.beta1 = 1: it must be at least 0 and below 1"),
          HasSubstr("model.heads = 4 is not a multiple of model.kv_heads = 3"),
          HasSubstr("parallel.pipeline = 5 is more than model.layers = 4"),
          HasSubstr("train.global_batch = 5 is not a multiple of train.microbatch 2 x 1 data "
                    "ranks = 2")));
}

TEST(JobRulesTest, NamesOfDirectoriesFitIntoAFileSystem) {
  const std::string longest(255, 'a');
  for (const char* field :
       {"name: '%s'", "metrics { directory: 'runs/%s/x' }", "checkpoint { directory: '/%s' }"}) {
    const std::string fits = absl::StrReplaceAll(field, {{"%s", longest}});
    const std::string long_by_one = absl::StrReplaceAll(field, {{"%s", longest + "a"}});
    EXPECT_THAT(JobProblems(With(fits), 1), IsEmpty());
    EXPECT_THAT(
        JobProblems(With(long_by_one), 1),
        ElementsAre(HasSubstr("has a part of 256 characters (\"aaaaaaaaaaaaaaaaaaaa...\")")));
  }
}

TEST(JobRulesTest, DirectoriesDoNotLieWhereTheOtherHasFiles) {
  const auto problems = [](absl::string_view checkpoints, absl::string_view metrics) {
    return JobProblems(With(absl::StrCat("checkpoint { directory: '", checkpoints,
                                         "' } metrics { directory: '", metrics, "' }")),
                       1);
  };
  for (const char* fine : {"c", "c/", "c/metrics", "c/latest_metrics", "m", "."}) {
    EXPECT_THAT(problems("c", fine), IsEmpty()) << fine;
  }
  for (const char* name : {"step_000000002", ".tmp_step_000000002/x", "latest", "./latest.tmp/"}) {
    EXPECT_THAT(problems("c", absl::StrCat("c/", name)),
                ElementsAre(AllOf(HasSubstr("metrics.directory = \"c/"),
                                  HasSubstr("of checkpoint.directory = \"c\""))))
        << name;
  }
  EXPECT_THAT(problems("m/checkpoints", "m"), IsEmpty());
  EXPECT_THAT(problems("m/x/../metrics.jsonl", "m"),
              ElementsAre(HasSubstr("where the run puts metrics.jsonl of")));
  // The other directory is the default.
  EXPECT_THAT(JobProblems(With("name: 'x' metrics { directory: 'runs/x/checkpoints/latest' }"), 1),
              ElementsAre(HasSubstr("of checkpoint.directory = \"runs/x/checkpoints\"")));
}

TEST(JobRulesTest, IntegersArePrintedWithAllDigits) {
  EXPECT_THAT(JobProblems(With("metrics { every_steps: -9223372036854775807 }"), 1),
              ElementsAre(HasSubstr("metrics.every_steps = -9223372036854775807: it must be")));
}

TEST(JobRulesTest, IntegersBeyondABoundAreNotRoundedToIt) {
  EXPECT_THAT(JobProblems(With("checkpoint { every_steps: 9007199254740992 }"), 1), IsEmpty());
  for (const char* field : {"train.steps", "metrics.every_steps", "checkpoint.every_steps"}) {
    const std::string change =
        absl::StrCat(absl::StrReplaceAll(field, {{".", " { "}}), ": 9007199254740993 }");
    EXPECT_THAT(JobProblems(With(change), 1),
                ::testing::Contains(HasSubstr(absl::StrCat(field, " = 9007199254740993: it must"))))
        << field;
  }
}

TEST(JobRulesTest, APatienceOfLessThanASecondIsRefused) {
  EXPECT_THAT(JobProblems(With("runtime { timeout_seconds: 1 }"), 1), IsEmpty());
  EXPECT_THAT(JobProblems(With("runtime { timeout_seconds: 0.5 }"), 1),
              ElementsAre(HasSubstr("runtime.timeout_seconds = 0.5: it must be at least 1 ")));
}

TEST(JobRulesTest, TextsHaveNoControlCharactersAndNamesStayInRuns) {
  EXPECT_THAT(JobProblems(With("name: 'a\\000b' data { train { path: 'a\\nb' } }"), 1),
              UnorderedElementsAre(HasSubstr("name = \"a\\x00\\x62\" has control characters"),
                                   HasSubstr("data.train[0].path = \"a\\nb\" has control")));
  for (const char* name : {"..", "../x", "a/../../x"}) {
    EXPECT_THAT(JobProblems(With(std::string("name: '") + name + "'"), 1),
                ElementsAre(HasSubstr("leads out of runs/")));
  }
  EXPECT_THAT(JobProblems(With("name: 'a/b c..d'"), 1), IsEmpty());
}

struct Mistake {
  const char* change;
  int ranks;
  const char* message;
};

TEST(JobRulesTest, EachRuleNamesFieldsAndValues) {
  const Mistake mistakes[] = {
      {"model { hidden: 34 }", 0, "model.hidden = 34 is not a multiple of model.heads = 4"},
      {"model { head_dim: 7 }", 0, "model.head_dim = 7 is odd"},
      {"model { head_dim: 514 } train { device: CUDA }", 0,
       "model.head_dim = 514 is more than 512, the most that train.device = CUDA takes"},
      {"model { hidden: 2056 } train { device: CUDA }", 0, "model.head_dim = 514 is more than 512"},
      {"model { kv_heads: 8 }", 0, "model.heads = 4 is not a multiple of model.kv_heads = 8"},
      {"model { init { std: 1e300 } }", 0, "model.init.std = 1e+300: it must be"},
      {"optimizer { eps: 1e-300 }", 0, "optimizer.eps = 1e-300: it must be"},
      {"train { global_batch: 2147483647 }", 1, "is 2147483647 micro-batches of"},
      {"data { train { weight: 1 } }", 0, "data.train[0].path is missing"},
      {"data { validation { path: 'v' weight: 0 } }", 0, "data.validation[0].weight = 0"},
      {"data { train { path: 'v' weight: nan } }", 0, "data.train[0].weight = nan"},
      {"model { vocabulary: 65537 }", 0, "model.vocabulary = 65537 does not fit data.format = "},
      {"parallel { tensor: 2 }", 3,
       "the number of ranks, 3, is not a multiple of parallel.tensor 2 x context 1 x "},
      {"parallel { tensor: 2 data: 2 }", 8,
       "parallel.tensor 2 x context 1 x pipeline 1 x data 2 = 4, but the number of ranks is 8; "
       "start "
       "4"},
      {"parallel { tensor: 3 }", 3, "parallel.tensor = 3 does not divide model.heads = 4"},
      {"model { heads: 12 head_dim: 4 kv_heads: 3 } parallel { tensor: 2 }", 2,
       "parallel.tensor = 2 and model.kv_heads = 3: one must divide the other"},
      {"parallel { pipeline: 2 schedule: ZERO_BUBBLE recompute: FULL }", 2,
       "parallel.recompute = FULL frees what parallel.schedule = ZERO_BUBBLE keeps"},
      {"parallel { pipeline: 5 }", 5, "parallel.pipeline = 5 is more than model.layers = 4"},
      {"parallel { pipeline: 2 virtual_stages: 2 }", 2,
       "parallel.virtual_stages = 2 needs parallel.schedule = INTERLEAVED, not ONE_F_ONE_B"},
      {"parallel { pipeline: 2 virtual_stages: 2 schedule: ZERO_BUBBLE }", 2,
       "parallel.virtual_stages = 2 needs parallel.schedule = INTERLEAVED, not ZERO_BUBBLE"},
      {"parallel { pipeline: 2 schedule: INTERLEAVED }", 2,
       "parallel.schedule = INTERLEAVED needs parallel.virtual_stages of at least 2, not 1"},
      {"parallel { virtual_stages: 2 schedule: INTERLEAVED }", 1,
       "parallel.schedule = INTERLEAVED needs parallel.pipeline of at least 2, not 1"},
      {"parallel { pipeline: 2 virtual_stages: 3 schedule: INTERLEAVED }", 2,
       "parallel.pipeline 2 x virtual_stages 3 = 6 stages are more than model.layers = 4"},
      {"optimizer { schedule: WSD warmup_steps: 5 decay_fraction: 0.5 }", 0,
       "optimizer.warmup_steps = 5 and the decay of schedule WSD over the last 4 of train.steps = "
       "8 overlap"},
      {"train { global_batch: 6 }", 4,
       "train.global_batch = 6 is not a multiple of train.microbatch 1 x 4 data ranks = 4"},
      {"train { global_batch: 6 microbatch: 4 }", 0, "train.global_batch = 6 is not a multiple"},
      {"model { sequence: 15 } parallel { tensor: 2 sequence_parallel: true }", 2,
       "train.microbatch 1 x model.sequence 15 = 15 tokens over parallel.tensor 2 x context 1 = 2"},
      {"model { sequence: 20 } parallel { context: 4 }", 4,
       "model.sequence = 20 is not a multiple of 2 x parallel.context 4 = 8"},
      {"model { sequence: 18 } parallel { tensor: 4 context: 3 sequence_parallel: true }", 12,
       "train.microbatch 1 x model.sequence 18 = 18 tokens over parallel.tensor 4 x context 3 = "
       "12"},
      {"model { layers: 10000 hidden: 33554432 head_dim: 33554432 }", 0, "is more than 2^60"},
      {"metrics { trace_steps: '2,8-9' }", 0,
       "metrics.trace_steps = \"2,8-9\" reaches beyond train.steps = 8"},
      {"metrics { trace_steps: '9' }", 0, "metrics.trace_steps = \"9\" reaches beyond train.steps"},
      {"train { steps: 9000000000000000 global_batch: 10000 }", 0,
       "train.steps 9000000000000000 x train.global_batch 10000 x model.sequence 16 is more"},
  };
  for (const Mistake& mistake : mistakes) {
    const JobSpec job = With(mistake.change);
    EXPECT_THAT(JobProblems(job, mistake.ranks), ElementsAre(HasSubstr(mistake.message)))
        << mistake.change;
    EXPECT_THAT(JobProblems(ResolveJobSpec(job, mistake.ranks), mistake.ranks),
                ElementsAre(HasSubstr(mistake.message)))
        << "resolved: " << mistake.change;
  }
}

TEST(JobRulesTest, OnlyCudaAskedForByNameRefusesWhatItsKernelsCannotDo) {
  const std::string many = "model { sequence: 1000 } train { global_batch: 1001 microbatch: 1001 }";
  const std::pair<std::string, std::string> too_much[] = {
      {"model { head_dim: 514 }", "model.head_dim = 514 is more than 512"},
      {many, "train.microbatch 1001 x model.sequence 1000 / parallel.context 1 = 1001000 tokens"},
      {"model { moe { experts: 2049 top_k: 1 } }", "model.moe.experts = 2049 is more than 2048"},
      {"model { hidden: 1000002 head_dim: 8 }", "model.hidden = 1000002 is more than 1000000"},
      {"model { heads: 18 kv_heads: 2 head_dim: 8 sequence: 888889 }",
       "model.sequence 888889 / parallel.context 1 x 9 of model.heads for each key/value head "
       "(model.heads 18 / the larger of model.kv_heads 2 and parallel.tensor 1) = 8000001 queries "
       "are more than 8000000"}};
  for (const auto& [change, message] : too_much) {
    JobSpec job = With(change);
    job.mutable_train()->set_device(TrainSpec::CUDA);
    EXPECT_THAT(JobProblems(job, 1), ElementsAre(HasSubstr(message)));
    for (TrainSpec::Device device : {TrainSpec::AUTO, TrainSpec::CPU}) {
      job.mutable_train()->set_device(device);
      EXPECT_THAT(JobProblems(job, 1), IsEmpty()) << change;
      EXPECT_FALSE(FitsCuda(ResolveJobSpec(job, 1))) << change;
    }
  }
  for (const char* change :
       {"model { head_dim: 512 }", "model { moe { experts: 2048 top_k: 1 } }",
        "model { sequence: 1000 } train { global_batch: 1000 microbatch: 1000 }",
        "model { hidden: 1000000 head_dim: 8 }",
        "model { heads: 18 kv_heads: 2 head_dim: 8 sequence: 888888 }",
        "model { heads: 18 kv_heads: 2 head_dim: 8 sequence: 1000000 } parallel { context: 2 }",
        "model { heads: 18 kv_heads: 1 head_dim: 8 sequence: 888888 } parallel { tensor: 2 }"}) {
    EXPECT_TRUE(FitsCuda(ResolveJobSpec(With(change), 0))) << change;
  }
}

TEST(JobRulesTest, ExpertsMustFitTheirRanksAndTokens) {
  EXPECT_THAT(
      JobProblems(With("model { moe { experts: 4 top_k: 5 } } parallel { expert: 3 }"), 4),
      UnorderedElementsAre(HasSubstr("model.moe.top_k = 5 is more than model.moe.experts = 4"),
                           HasSubstr("model.moe.experts = 4 is not a multiple of parallel.expert "),
                           HasSubstr("parallel.expert = 3 does not divide parallel.data = 4")));
  EXPECT_THAT(JobProblems(With("model { layers: 1000 moe { experts: 1001 top_k: 1 } }"), 1),
              ElementsAre(HasSubstr("model.layers 1000 x model.moe.experts 1001 are more than")));
  EXPECT_THAT(JobProblems(With("model { moe {} }"), 1),
              UnorderedElementsAre(HasSubstr("model.moe.experts is missing"),
                                   HasSubstr("model.moe.top_k is missing")));
  EXPECT_THAT(JobProblems(With("parallel { expert: 2 data: 2 }"), 2),
              ElementsAre(HasSubstr("parallel.expert = 2, but the model has no experts")));
  EXPECT_THAT(
      JobProblems(With("model { moe { experts: 64 top_k: 64 } sequence: 2097152 }"
                       "train { microbatch: 16 global_batch: 16 }"),
                  1),
      ElementsAre(HasSubstr(
          "x model.moe.top_k 64 = 2147483648 routed tokens are more than 2147483647; make")));
  EXPECT_THAT(JobProblems(With("model { moe { experts: 6 top_k: 6 } } parallel { expert: 2 }"), 8),
              IsEmpty());
}

TEST(JobRulesTest, LayoutsThatFitAreAccepted) {
  EXPECT_THAT(
      JobProblems(With("parallel { pipeline: 2 virtual_stages: 2 schedule: INTERLEAVED }"), 2),
      IsEmpty());
  EXPECT_THAT(JobProblems(With("parallel { pipeline: 4 schedule: ZERO_BUBBLE }"), 4), IsEmpty());
  EXPECT_THAT(JobProblems(With("parallel { tensor: 2 pipeline: 2 sequence_parallel: true }"), 8),
              IsEmpty());
  EXPECT_THAT(JobProblems(With("model { kv_heads: 2 } parallel { tensor: 4 data: 2 }"), 8),
              IsEmpty());
  EXPECT_THAT(JobProblems(With("parallel { tensor: 2 context: 8 sequence_parallel: true }"), 16),
              IsEmpty());
  EXPECT_THAT(JobProblems(With("train { device: CPU deterministic: false }"
                               "optimizer { warmup_steps: 100 clip_norm: 0 }"
                               "model { vocabulary: 100000 } data { format: TOKENS_U32 }"),
                          1),
              IsEmpty());
}

// ---- Every number.

struct Leaf {
  std::string path;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
};

// All fields outside lists, model.moe's too.
void AppendLeaves(const google::protobuf::Descriptor& type, const Leaf& at,
                  std::vector<Leaf>* leaves) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type.field(i);
    if (field->is_repeated()) continue;
    Leaf leaf = at;
    leaf.path += (at.fields.empty() ? "" : ".") + field->name();
    leaf.fields.push_back(field);
    if (field->message_type() != nullptr) {
      AppendLeaves(*field->message_type(), leaf, leaves);
    } else {
      leaves->push_back(leaf);
    }
  }
}

std::vector<Leaf> Leaves() {
  std::vector<Leaf> leaves;
  AppendLeaves(*JobSpec::descriptor(), {}, &leaves);
  return leaves;
}

// The minimal job with `text` as the leaf's value.
JobSpec WithLeaf(const Leaf& leaf, const std::string& text) {
  std::string change = leaf.fields.back()->name() + ": " + text;
  for (size_t i = leaf.fields.size() - 1; i-- > 0;) {
    change = absl::StrCat(leaf.fields[i]->name(), " { ", change, " }");
  }
  return With(change);
}

TEST(JobRulesTest, EveryNumberHasLimits) {
  using google::protobuf::FieldDescriptor;
  for (const Leaf& leaf : Leaves()) {
    const FieldDescriptor::CppType type = leaf.fields.back()->cpp_type();
    std::vector<std::string> bad;
    if (type == FieldDescriptor::CPPTYPE_INT32) bad = {"-1", "-2147483648", "2147483647"};
    if (type == FieldDescriptor::CPPTYPE_INT64) bad = {"-1", "9223372036854775807"};
    if (type == FieldDescriptor::CPPTYPE_DOUBLE) bad = {"-1", "nan", "inf", "-inf"};
    for (const std::string& value : bad) {
      EXPECT_THAT(JobProblems(WithLeaf(leaf, value), 1),
                  ::testing::Contains(AllOf(HasSubstr(leaf.path + " = "), HasSubstr("it must be"))))
          << leaf.path << ": " << value;
    }
  }
}

// ---- Every enum value.

TEST(JobRulesTest, EveryEnumValueIsAcceptedOrRefusedByName) {
  int accepted = 0;
  int refused = 0;
  for (const Leaf& leaf : Leaves()) {
    const google::protobuf::EnumDescriptor* type = leaf.fields.back()->enum_type();
    for (int i = 0; type != nullptr && i < type->value_count(); ++i) {
      const std::string value = type->value(i)->name();
      const std::vector<std::string> problems = JobProblems(WithLeaf(leaf, value), 1);
      problems.empty() ? ++accepted : ++refused;
      if (problems.empty()) continue;
      EXPECT_THAT(problems,
                  Each(AnyOf(HasSubstr(leaf.path + " = " + value + " is not built yet; set it to "),
                             HasSubstr(leaf.path + " = " + value + " needs "))));
    }
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(refused, 0);
}

TEST(JobRulesTest, EveryFieldNotBuiltYetIsRefusedWithItsOffValue) {
  const Mistake mistakes[] = {
      {"data { tokenizer: 'gpt2' }", 1,
       "data.tokenizer = \"gpt2\" is not built yet; remove it or set it to \"bytes\""},
      {"train { loss_spike { zscore: 6 } }", 1,
       "train.loss_spike.zscore = 6 is not built yet; remove it or set it to 0"},
      {"checkpoint { async: true }", 1,
       "checkpoint.async = true is not built yet; remove it or set it to false"},
      {"metrics { stream_stats_every: 10 }", 1, "metrics.stream_stats_every = 10 is not built yet"},
  };
  for (const Mistake& mistake : mistakes) {
    EXPECT_THAT(JobProblems(With(mistake.change), mistake.ranks),
                ElementsAre(HasSubstr(mistake.message)))
        << mistake.change;
  }
}

TEST(JobRulesTest, TheBytesTokenizerNeedsRoomForEveryByte) {
  EXPECT_THAT(TokenizerProblems(With("model { vocabulary: 255 }")),
              ElementsAre(HasSubstr("model.vocabulary = 255 is too small")));
  EXPECT_THAT(TokenizerProblems(With("model { vocabulary: 256 }")), IsEmpty());
}

}  // namespace
}  // namespace twinstream
