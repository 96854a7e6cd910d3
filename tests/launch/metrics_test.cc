#include "launch/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::HasSubstr;

class MetricsTest : public ::testing::Test {
 protected:
  ~MetricsTest() override { std::filesystem::remove_all(folder_); }

  MetricsWriter Open(int64_t resumed_step) const {
    absl::StatusOr<MetricsWriter> writer =
        MetricsWriter::Open({.directory = folder_, .resumed_step = resumed_step});
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  std::string Text() const { return Read(folder_ + "/metrics.jsonl"); }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  std::string Events() const {  // of all files
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/tensorboard")) {
      all += Read(entry.path().string());
    }
    return all;
  }
  std::string folder_ =
      (std::filesystem::temp_directory_path() / ("metrics_test." + std::to_string(getpid())))
          .string();
};

StepMetrics Metrics(int64_t step) {
  return {.step = step,
          .loss = 5.5451774597168f,
          .cross_entropy = 5.5f,
          .grad_norm = 0.1f,
          .learning_rate = 1e-3,
          .tokens = 4096 * step,
          .tokens_per_second = 12345.5,
          .step_seconds = 0.25,
          .model_flops_utilization = 0.5,
          .memory_bytes = int64_t{1} << 40};
}

const char kStepOne[] =
    "{\"step\": 1, \"loss\": 5.54517746, \"cross_entropy\": 5.5, \"grad_norm\": 0.100000001, "
    "\"learning_rate\": 0.001, \"tokens\": 4096, \"tokens_per_second\": 12345.5, "
    "\"step_seconds\": 0.25, \"model_flops_utilization\": 0.5, \"memory_bytes\": 1099511627776}\n";

TEST_F(MetricsTest, LinesCarryTheKeysAndAreThereAtOnce) {
  MetricsWriter writer = Open(0);
  ASSERT_TRUE(writer.Write(Metrics(1)).ok());
  EXPECT_EQ(Text(), kStepOne);
  ASSERT_TRUE(writer.Write(ValidationMetrics{.step = 1, .loss = 0.5}).ok());
  EXPECT_EQ(Text(), absl::StrCat(kStepOne,
                                 "{\"step\": 1, \"validation_loss\": 0.5, "
                                 "\"validation_perplexity\": 1.64872127}\n"));
  EXPECT_THAT(Events(), HasSubstr("validation_perplexity"));
  EXPECT_THAT(Events(), HasSubstr("model_flops_utilization"));
}

TEST_F(MetricsTest, MoeAndSkippedStepsAppearOnlyWhenThereAreAny) {
  MetricsWriter writer = Open(0);
  StepMetrics metrics = Metrics(1);
  metrics.moe = MoeMetrics{
      .load_balance = 1.5, .router_z = 2, .expert_imbalance = 3, .expert_tokens = {70, 0, 26}};
  metrics.skipped_steps = 2;
  ASSERT_TRUE(writer.Write(metrics).ok());
  EXPECT_THAT(Text(), HasSubstr(", \"load_balance\": 1.5, \"router_z\": 2, "
                                "\"expert_imbalance\": 3, \"expert_tokens\": [70, 0, 26], "
                                "\"skipped_steps\": 2}\n"));
  EXPECT_THAT(Events(), HasSubstr("expert_imbalance"));
}

TEST_F(MetricsTest, EveryFloatSurvivesAndNonFiniteOnesAreStrings) {
  MetricsWriter writer = Open(0);
  for (const float loss :
       {std::nextafter(1.0f, 2.0f), 1.17549435e-38f, 3.40282347e38f, 16777217.0f, 1e-45f, -0.1f}) {
    StepMetrics metrics = Metrics(1);
    metrics.loss = loss;
    ASSERT_TRUE(writer.Write(metrics).ok());
    const std::string text = Text();
    const size_t at = text.rfind("\"loss\": ") + 8;
    EXPECT_EQ(std::strtof(text.c_str() + at, nullptr), loss);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  StepMetrics metrics = Metrics(2);
  metrics.loss = std::nan("");
  metrics.cross_entropy = infinity;
  metrics.grad_norm = -infinity;
  ASSERT_TRUE(writer.Write(metrics).ok());
  EXPECT_THAT(Text(), HasSubstr("{\"step\": 2, \"loss\": \"nan\", \"cross_entropy\": \"inf\", "
                                "\"grad_norm\": \"-inf\", \"learning_rate\": 0.001"));
}

TEST_F(MetricsTest, AResumedRunDropsLaterLinesAndATornOne) {
  std::string first_three;
  {
    MetricsWriter writer = Open(0);
    for (int64_t step = 1; step <= 12; ++step) {
      ASSERT_TRUE(writer.Write(Metrics(step)).ok());
      if (step != 3) continue;
      ASSERT_TRUE(writer.Write(ValidationMetrics{.step = 3, .loss = 1}).ok());
      first_three = Text();
    }
  }
  std::ofstream(folder_ + "/metrics.jsonl", std::ios::app) << "{\"step\": 1, \"loss\": 5.5";
  MetricsWriter writer = Open(3);
  EXPECT_EQ(Text(), first_three);
  ASSERT_TRUE(writer.Write(Metrics(4)).ok());
  EXPECT_THAT(Text(), HasSubstr("}\n{\"step\": 4, "));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ + "/tensorboard"), {}), 2);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);  // no remains
}

// A limit on the size of files stands for a full disk.
TEST_F(MetricsTest, ALineThatCannotBeWrittenNamesTheFileAndTheCause) {
  MetricsWriter writer = Open(0);
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // it would end the process
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status status = writer.Write(Metrics(1));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.message(),
            "metrics.directory \"" + folder_ + "\": cannot write " + folder_ +
                "/metrics.jsonl: File too large; make room in it or name another");
}

TEST_F(MetricsTest, AFreshStartBeginsAnEmptyFile) {
  ASSERT_TRUE(Open(0).Write(Metrics(1)).ok());
  Open(0);
  EXPECT_EQ(Text(), "");
}

TEST_F(MetricsTest, WithoutTensorBoardThereIsNoFolderForIt) {
  absl::StatusOr<MetricsWriter> writer =
      MetricsWriter::Open({.directory = folder_, .tensorboard = false});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->Write(Metrics(1)).ok());
  EXPECT_EQ(Text(), kStepOne);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/tensorboard"));
}

}  // namespace
}  // namespace twinstream
