#include "proto/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "proto/job_resume.h"
#include "proto/nearest_name.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kMinimal[] =
    "model { layers: 2 hidden: 32 heads: 4 ffn: 48 vocabulary: 256 sequence: 16 }\n"
    "data { train { path: 'a.bin' } train { path: 'b.bin' weight: 2 } }\n"
    "train { steps: 8 }\n";

JobSpec Parsed(const std::string& text) {
  const absl::StatusOr<JobSpec> job = ParseJobSpec(text, "job.textproto");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : JobSpec();
}

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<JobSpec> job = ParseJobSpec(text, "job.textproto");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

// A job file that lives as long as this.
class JobFile {
 public:
  explicit JobFile(const std::string& text)
      : path_(::testing::TempDir() + "job_spec_test_run.textproto") {
    std::ofstream(path_) << text;
  }
  ~JobFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(JobSpecTest, AnUnknownFieldIsPlacedAndNamesItsNeighbour) {
  EXPECT_EQ(ErrorOf("name: 'x'\nmodel {\n  lyers: 8\n}\n"),
            "job.textproto:3:3: no field \"lyers\" in model; did you mean \"layers\"?");
  EXPECT_EQ(ErrorOf("modle { layers: 8 }"),
            "job.textproto:1:1: no field \"modle\" in the job; did you mean \"model\"?");
  EXPECT_EQ(ErrorOf("data { validation { pth: 'a' } }"),
            "job.textproto:1:21: no field \"pth\" in data.validation; did you mean \"path\"?");
}

TEST(JobSpecTest, AnUnknownValueIsPlacedAtItselfAndNamesItsNeighbour) {
  const std::string error = ErrorOf("parallel {\n  schedule: ONE_F_ON_B\n  tensor: 2\n}");
  EXPECT_THAT(error, HasSubstr("job.textproto:2:13: no value \"ONE_F_ON_B\" of parallel.schedule; "
                               "did you mean \"ONE_F_ONE_B\"? It knows GPIPE, ONE_F_ONE_B"));
  // Another field of that name has other values.
  EXPECT_THAT(ErrorOf("optimizer { schedule: COSIN }"), HasSubstr("did you mean \"COSINE\"?"));
}

TEST(JobSpecTest, NestingWithoutEndIsRefusedBeforeTheStackIs) {
  for (const std::string level : {"model { moe { ", "foo { ", "foo < ", "foo: ["}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += level;
    EXPECT_THAT(ErrorOf(text), HasSubstr("nested more than 16 deep")) << level;
  }
}

TEST(JobSpecTest, AFlawedValueNamesItsField) {
  EXPECT_EQ(ErrorOf("runtime { threads: 3000000000 }"),
            "job.textproto:1:20: runtime.threads: Integer out of range (3000000000)");
  EXPECT_THAT(ErrorOf("train { seed: -1 }"), HasSubstr("train.seed: Expected integer"));
}

TEST(JobSpecTest, OfManyMistakesFiftyAreListedAndTheRestCounted) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "foo: 1\n";
  const std::string error = ErrorOf(text);
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 50);
  EXPECT_THAT(error, HasSubstr("and 950 more mistakes"));
}

TEST(JobSpecTest, AFileThatIsNoPageOfTextIsRefused) {
  EXPECT_THAT(LoadJobSpec("/dev/zero", {}).status().message(), HasSubstr("/dev/zero is larger"));
}

TEST(JobSpecTest, AllUnknownFieldsAndValuesAreReportedTogether) {
  const std::string error = ErrorOf(
      "model {\n\tresidual: SIAMESE\tfamily: ENCODER  # both wrong\n  lyers: 8 }\n"
      "train { step: 3 }\nnme: 'x'");
  EXPECT_THAT(error, HasSubstr("job.textproto:2:19: no value \"SIAMESE\" of model.residual"));
  EXPECT_THAT(error, HasSubstr("no value \"ENCODER\" of model.family; did you mean \"DECODER\"?"));
  EXPECT_THAT(error, HasSubstr("job.textproto:3:3: no field \"lyers\" in model"));
  EXPECT_THAT(error, HasSubstr("job.textproto:4:9: no field \"step\" in train; did you mean "
                               "\"steps\"?"));
  EXPECT_THAT(error, HasSubstr("job.textproto:5:1: no field \"nme\" in the job"));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 4) << error;
}

TEST(JobSpecTest, SyntaxErrorsDuplicatesAndWrongTypesArePlaced) {
  EXPECT_THAT(ErrorOf("model { layers: 8 "), HasSubstr("job.textproto:1:19: "));
  EXPECT_THAT(ErrorOf("train { steps: 1\n steps: 2 }"), HasSubstr("job.textproto:2:2: "));
  EXPECT_THAT(ErrorOf("train {\n steps: many }"), HasSubstr("job.textproto:2:9: "));
  EXPECT_THAT(ErrorOf("train { steps: 99999999999999999999 }"), HasSubstr("job.textproto:1:16: "));
  EXPECT_THAT(ErrorOf("model { qk_norm: maybe }"), HasSubstr("qk_norm"));
  EXPECT_THAT(ErrorOf(std::string("\0\xff\x7f{}}", 6)), HasSubstr("job.textproto:1:1: "));
  EXPECT_THAT(ErrorOf("model { residual: -1 }"), HasSubstr("residual"));
  EXPECT_THAT(ErrorOf("model { residual: 99 }"), HasSubstr("residual"));
}

TEST(JobSpecTest, AByteOrderMarkIsPassedOver) {
  EXPECT_TRUE(LoadJobSpec(JobFile(std::string("\xEF\xBB\xBF") + kMinimal).path(), {}).ok());
  const absl::Status wrong = LoadJobSpec(JobFile("\xEF\xBB\xBFnmae: 'a'").path(), {}).status();
  EXPECT_THAT(std::string(wrong.message()), HasSubstr(":1:1: no field \"nmae\""));
}

TEST(JobSpecTest, TheFileNamesTheJobUnlessItDoes) {
  EXPECT_EQ(ParseJobSpec("", "jobs/tiny.textproto")->name(), "tiny");
  EXPECT_EQ(ParseJobSpec("name: 'own'", "jobs/tiny.textproto")->name(), "own");
}

TEST(JobSpecTest, OverridesMergeInOrderAndReplaceLists) {
  const JobFile file(kMinimal);
  const absl::StatusOr<JobSpec> job =
      LoadJobSpec(file.path(), {"parallel { tensor: 4 }", "train { steps: 5 seed: 3 }", "",
                                "train { steps: 6 } data { train { path: 'c.bin' } }"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->parallel().tensor(), 4);
  EXPECT_EQ(job->train().steps(), 6);
  EXPECT_EQ(job->train().seed(), 3u);
  EXPECT_EQ(job->model().layers(), 2);
  ASSERT_EQ(job->data().train_size(), 1);
  EXPECT_EQ(job->data().train(0).path(), "c.bin");
}

TEST(JobSpecTest, AMistakeInAnOverrideNamesTheOverride) {
  const JobFile file(kMinimal);
  const absl::Status status =
      LoadJobSpec(file.path(), {"train { steps: 5 }", "train { stps: 5 }"}).status();
  EXPECT_EQ(std::string(status.message()),
            "--override[1]:1:9: no field \"stps\" in train; did you mean \"steps\"?");
}

TEST(JobSpecTest, MistakesOfTheFileAndOfEveryOverrideComeTogether) {
  const JobFile file("train { steps: 3 sed: 1 }");
  const absl::Status status =
      LoadJobSpec(file.path(), {"train { stps: 5 }", "train { steps: 5 }", "train { seed: }"})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  EXPECT_THAT(lines, ElementsAre(HasSubstr(":1:18: no field \"sed\" in train"),
                                 HasSubstr("--override[0]:1:9: no field \"stps\" in train"),
                                 HasSubstr("--override[2]:1:15: ")));
}

TEST(JobSpecTest, AMissingFileAndADirectoryAreNamed) {
  const absl::Status missing = LoadJobSpec("no/such.textproto", {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("no/such.textproto: No such file"));
  EXPECT_THAT(std::string(LoadJobSpec(::testing::TempDir(), {}).status().message()),
              HasSubstr("is a directory"));
}

TEST(JobSpecTest, ResolvingDerivesWhatTheJobLeavesOpen) {
  const JobSpec job = ResolveJobSpec(
      Parsed(std::string(kMinimal) + "parallel { tensor: 2 pipeline: 2 } optimizer {}"), 16);
  EXPECT_EQ(job.model().kv_heads(), 4);
  EXPECT_EQ(job.model().head_dim(), 8);
  EXPECT_EQ(job.parallel().data(), 4);
  EXPECT_EQ(job.train().global_batch(), 4);
  EXPECT_EQ(job.metrics().directory(), "runs/job");
  EXPECT_EQ(job.checkpoint().directory(), "runs/job/checkpoints");
  EXPECT_FALSE(job.model().has_moe());
}

// Every scalar of a resolved job is explicit, so the printed job shows what is run.
void ExpectEverythingSet(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = type.field(i);
    if (field->is_repeated() || field->name() == "moe") continue;
    EXPECT_TRUE(message.GetReflection()->HasField(message, field)) << field->full_name();
    if (field->message_type() != nullptr) {
      ExpectEverythingSet(message.GetReflection()->GetMessage(message, field));
    }
  }
}

TEST(JobSpecTest, AResolvedJobIsExplicitAndStaysTheSameThroughItsText) {
  const JobSpec job = ResolveJobSpec(Parsed(kMinimal), 2);
  ExpectEverythingSet(job);
  const JobSpec again = ResolveJobSpec(Parsed(JobText(job)), 8);
  EXPECT_EQ(JobText(again), JobText(job));
  EXPECT_THAT(JobDifferences(job, again), IsEmpty());
}

TEST(JobSpecTest, ResolvingNonsenseNeverFails) {
  for (const char* text :
       {"", "model { heads: 0 hidden: 4 }", "parallel { tensor: -1 pipeline: 2147483647 }",
        "parallel { data: 9 } train { microbatch: 9223372036854775807 }",
        "parallel { tensor: 2147483647 pipeline: 2147483647 context: 2147483647 }"}) {
    EXPECT_EQ(ResolveJobSpec(Parsed(text), 0).name(), "job");
    EXPECT_EQ(ResolveJobSpec(Parsed(text), 3).name(), "job");
  }
}

TEST(JobResumeTest, DifferencesNameLeavesAndSeeDefaults) {
  const JobSpec a = Parsed(kMinimal);
  JobSpec b = a;
  b.mutable_train()->set_steps(16);
  b.mutable_optimizer()->set_beta1(0.9);  // the default
  b.mutable_data()->mutable_train(1)->set_path("c.bin");
  b.mutable_data()->add_train()->set_path("d.bin");
  b.mutable_model()->set_residual(ModelSpec::PRE_NORM);
  EXPECT_THAT(JobDifferences(a, b),
              ElementsAre("model.residual: SIAMESE_HYBRID_PRE -> PRE_NORM",
                          "data.train[1].path: \"b.bin\" -> \"c.bin\"",
                          "data.train[2].path: (unset) -> \"d.bin\"", "train.steps: 8 -> 16"));
}

TEST(JobResumeTest, LayoutOptimizerAndBookkeepingMayChange) {
  const JobSpec saved = ResolveJobSpec(Parsed(kMinimal), 1);
  JobSpec now = saved;
  now.mutable_parallel()->set_tensor(2);
  now.mutable_optimizer()->set_peak_lr(5e-4);
  now.mutable_train()->set_steps(16);
  now.mutable_runtime()->set_threads(2);
  now.mutable_checkpoint()->set_keep(7);
  now.mutable_metrics()->set_every_steps(5);
  std::vector<std::string> changes;
  EXPECT_TRUE(CheckResumable(saved, now, &changes).ok());
  EXPECT_THAT(changes, ElementsAre("parallel.tensor: 1 -> 2", "optimizer.peak_lr: 0.001 -> 0.0005",
                                   "train.steps: 8 -> 16", "checkpoint.keep: 3 -> 7",
                                   "metrics.every_steps: 1 -> 5", "runtime.threads: 0 -> 2"));
}

TEST(JobResumeTest, AnotherModelDataOrCourseIsRefusedNamingEveryField) {
  const JobSpec saved = ResolveJobSpec(Parsed(kMinimal), 1);
  for (const char* change :
       {"model { layers: 3 }", "model { moe { experts: 4 } }", "model { init { std: 0.5 } }",
        "data { train { path: 'other.bin' } }", "data { order: SEQUENTIAL }",
        "data { validation { path: 'v.bin' } }", "train { global_batch: 4 }", "train { seed: 2 }",
        "train { z_loss: 0.1 }", "train { precision: BF16 }"}) {
    JobSpec now = saved;
    ASSERT_TRUE(ApplyOverrides({change}, &now).ok());
    std::vector<std::string> changes;
    const absl::Status status = CheckResumable(saved, now, &changes);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << change;
    EXPECT_THAT(std::string(status.message()), HasSubstr(JobDifferences(saved, now)[0]));
    EXPECT_THAT(changes, IsEmpty());
  }
}

TEST(NearestNameTest, PrefersContainmentThenFewestEdits) {
  const std::vector<std::string> names = {"train", "validate", "generate", "prepare-data"};
  EXPECT_EQ(NearestName("trian", names), "train");
  EXPECT_EQ(NearestName("GENERATE", names), "generate");
  EXPECT_EQ(NearestName("prepare", names), "prepare-data");
  EXPECT_EQ(NearestName("x", {}), "");
}

}  // namespace
}  // namespace twinstream
