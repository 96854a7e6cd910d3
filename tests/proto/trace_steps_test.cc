#include "proto/trace_steps.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> StepsOf(const std::string& text) {
  const absl::StatusOr<TraceSteps> steps = TraceSteps::Parse(text);
  EXPECT_TRUE(steps.ok()) << steps.status();
  std::vector<int64_t> traced;
  for (int64_t step = 0; step < 20; ++step) {
    if (steps->Contains(step)) traced.push_back(step);
  }
  EXPECT_EQ(steps->CountWithin(1, 19), static_cast<int64_t>(traced.size()));
  return traced;
}

TEST(TraceSteps, AreStepsAndRangesOfThem) {
  EXPECT_THAT(StepsOf(""), IsEmpty());
  EXPECT_THAT(StepsOf("5"), ElementsAre(5));
  EXPECT_THAT(StepsOf("5-6"), ElementsAre(5, 6));
  EXPECT_THAT(StepsOf("3,7-9"), ElementsAre(3, 7, 8, 9));
  EXPECT_EQ(TraceSteps::Parse("3,7-9")->CountWithin(4, 8), 2);
}

TEST(TraceSteps, BadTextNamesThePartAndItsPlace) {
  struct Bad {
    const char *text, *message;
  };
  for (const Bad& bad :
       {Bad{"x", "\"x\" at character 1"}, Bad{"0", "\"0\" at character 1"},
        Bad{"3,", "\"\" at character 3"}, Bad{"3,6-5", "\"6-5\" at character 3"},
        Bad{"1-2-3", "\"1-2-3\" at character 1"}, Bad{"5-", "\"5-\" at character 1"},
        Bad{"-5", "\"-5\" at character 1"}, Bad{"3-5,5", "\"5\" at character 5 is not behind"},
        Bad{"99999999999999999999", "at character 1"}}) {
    const absl::StatusOr<TraceSteps> steps = TraceSteps::Parse(bad.text);
    ASSERT_FALSE(steps.ok()) << bad.text;
    EXPECT_THAT(std::string(steps.status().message()), HasSubstr(bad.message));
  }
}

constexpr char kJob[] =
    "model { layers: 4 hidden: 32 heads: 4 ffn: 48 vocabulary: 64 sequence: 16 }\n"
    "data { train { path: 'a.bin' } } train { steps: 5000 }\n";

TEST(TraceSteps, AMistakeIsOneAmongTheOthers) {
  JobSpec job = *ParseJobSpec(kJob, "job.textproto");
  job.mutable_metrics()->set_trace_steps("2,x");
  job.mutable_model()->set_head_dim(7);
  EXPECT_THAT(JobProblems(job, 1),
              ElementsAre(HasSubstr("model.head_dim = 7"),
                          HasSubstr("metrics.trace_steps = \"2,x\": \"x\" at character 3")));
}

TEST(TraceSteps, AtMostAThousandStepsOfTheRunAndTwoMillionSpans) {
  JobSpec job = *ParseJobSpec(kJob, "job.textproto");
  job.mutable_metrics()->set_trace_steps("1-1000");
  EXPECT_THAT(JobProblems(job, 1), IsEmpty());
  job.mutable_metrics()->set_trace_steps("1-1001");
  EXPECT_THAT(JobProblems(job, 1),
              ElementsAre(HasSubstr("metrics.trace_steps = \"1-1001\" are 1001 steps; trace at "
                                    "most 1000")));
  job.mutable_train()->set_global_batch(512);
  job.mutable_metrics()->set_trace_steps("1-1000");
  EXPECT_THAT(JobProblems(job, 1),
              ElementsAre(HasSubstr("1000 steps of 512 micro-batches x 1 stages per rank: about "
                                    "8192000 spans, but at most 2000000 are kept; trace 244 "
                                    "steps at most")));
}

}  // namespace
}  // namespace twinstream
