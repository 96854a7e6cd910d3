#include "launch/progress.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

// A file in memory that Progress prints to.
class ProgressTest : public ::testing::Test {
 protected:
  ~ProgressTest() override {
    std::fclose(out_);
    std::free(text_);
  }
  std::string TakeText() {
    std::fflush(out_);
    const std::string text(text_ + taken_, size_ - taken_);
    taken_ = size_;
    return text;
  }

  char* text_ = nullptr;
  size_t size_ = 0, taken_ = 0;
  FILE* out_ = open_memstream(&text_, &size_);
};

StepMetrics Metrics(int64_t step, double seconds) {
  return {.step = step,
          .loss = 5.54518,
          .grad_norm = 1.25,
          .learning_rate = 1e-3,
          .tokens_per_second = 12345,
          .step_seconds = seconds};
}

TEST_F(ProgressTest, AwayFromATerminalEveryStepIsAPlainLine) {
  Progress progress({.out = out_, .terminal = false, .steps = 300});
  progress.Step(Metrics(1, 2));
  progress.Step(Metrics(2, 2));
  progress.Validation({.step = 2, .loss = std::log(50.0)});
  EXPECT_EQ(TakeText(),
            "step 1/300  loss 5.5452  12.3k tokens/s  ETA 9m58s  grad norm 1.25  lr 0.001\n"
            "step 2/300  loss 5.5452  12.3k tokens/s  ETA 9m56s  grad norm 1.25  lr 0.001\n"
            "step 2/300  validation loss 3.9120  perplexity 50\n");
}

TEST_F(ProgressTest, OnATerminalOneLineIsRewritten) {
  Progress progress({.out = out_, .terminal = true, .columns = 81, .steps = 300});
  progress.Step(Metrics(1, 2));
  const std::string first =
      "step 1/300  loss 5.5452  12.3k tokens/s  ETA 9m58s  grad norm 1.25  lr 0.001";
  EXPECT_EQ(TakeText(), absl::StrCat("\r", first, std::string(80 - first.size(), ' ')));
  progress.Validation({.step = 1, .loss = 0});
  EXPECT_EQ(TakeText(), absl::StrCat("\r", std::string(80, ' '),
                                     "\rstep 1/300  validation loss 0.0000  perplexity 1\n"));
  progress.Step(Metrics(2, 2));
  TakeText();
  progress.Finish({.steps = 2, .tokens = 4096, .seconds = 4, .final_loss = 1.5});
  EXPECT_EQ(TakeText(),
            "\n2 steps, 4096 tokens in 4s (1.02k tokens/s). Final loss 1.5000.\n"
            "Checkpoints: \n");
}

TEST_F(ProgressTest, ALiveLineNeverReachesTheLastColumn) {
  Progress progress({.out = out_, .terminal = true, .columns = 30, .steps = 300});
  progress.Step(Metrics(1, 2));
  EXPECT_EQ(TakeText(), "\rstep 1/300  loss 5.5452  12.3");
}

TEST_F(ProgressTest, TheExpectedTimeForgetsASlowFirstStep) {
  Progress progress({.out = out_, .terminal = false, .steps = 1000000});
  progress.Step(Metrics(1, 100));
  for (int64_t step = 2; step <= 100; ++step) progress.Step(Metrics(step, 1));
  TakeText();
  progress.Step(Metrics(1000000 - 7200, 1));
  EXPECT_NE(TakeText().find("ETA 2h00m"), std::string::npos);
  progress.Step(Metrics(1000000, 1));
  EXPECT_NE(TakeText().find("ETA 0s"), std::string::npos);
}

TEST_F(ProgressTest, NonFiniteLossesAreShownAsTheyAre) {
  Progress progress({.out = out_, .terminal = false, .steps = 3});
  StepMetrics metrics = Metrics(3, 1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.grad_norm = std::numeric_limits<double>::infinity();
  progress.Step(metrics);
  EXPECT_EQ(TakeText(), "step 3/3  loss nan  12.3k tokens/s  ETA 0s  grad norm inf  lr 0.001\n");
}

TEST_F(ProgressTest, TheSummarySaysWhatTheRunDid) {
  Progress progress({.out = out_, .terminal = false, .steps = 300});
  progress.Finish({.steps = 300,
                   .tokens = 1228800,
                   .seconds = 90061,
                   .final_loss = 2.25,
                   .validation_loss = 2.5,
                   .communication = 0.0625,
                   .bubble = 0.123,
                   .planned_bubble = 0.1111,
                   .checkpoint_directory = "runs/a/checkpoints"});
  EXPECT_EQ(
      TakeText(),
      "300 steps, 1228800 tokens in 1d01h (13.6 tokens/s). Final loss 2.2500, validation loss "
      "2.5000.\nPipeline bubble 12.3 % (planned 11.1 %), communication 6.2 % of step time.\n"
      "Checkpoints: runs/a/checkpoints\n");
}

TEST_F(ProgressTest, OnePipelineRankHasNoBubble) {
  Progress progress({.out = out_, .terminal = false, .steps = 2});
  progress.Finish({.steps = 2, .tokens = 4096, .seconds = 4, .communication = 0.5});
  EXPECT_EQ(TakeText(),
            "2 steps, 4096 tokens in 4s (1.02k tokens/s). Final loss 0.0000.\n"
            "Communication 50.0 % of step time.\n"
            "Checkpoints: \n");
}

TEST_F(ProgressTest, ATableStandsBelowTheLiveLine) {
  Progress progress({.out = out_, .terminal = true, .columns = 30, .steps = 300});
  progress.Step(Metrics(1, 2));
  TakeText();
  progress.Table("a 1\nb 2");
  progress.Table("c 3");
  EXPECT_EQ(TakeText(), "\na 1\nb 2\nc 3\n");
}

TEST(TerminalColumnsTest, WhatIsNoTerminalHasEightyColumns) {
  FILE* file = std::tmpfile();
  EXPECT_EQ(TerminalColumns(file), 80);
  std::fclose(file);
}

}  // namespace
}  // namespace twinstream
