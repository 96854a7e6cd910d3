// After the first steps a step asks for no memory: neither from C++'s heap nor from the device. And
// it copies no more to the host than it must, and only to and from what AllocateHost has given.
#include <dlfcn.h>
#include <dnnl.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/profiled_device.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/trainer.h"
#include "tests/testing/counted_device.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/tiny_run.h"

namespace {

// Replacements of the global operators can only talk through globals.
constinit std::atomic<bool> counting{false};
constinit std::atomic<int64_t> allocations{0};

// oneDNN keeps maps of its own; only what our code asks for is counted.
bool IsOneDnn(const void* caller) {
  Dl_info info = {};
  return dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "dnnl") != nullptr;
}

void* Allocate(size_t bytes, const void* caller) {
  if (counting && !IsOneDnn(caller)) ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
void* operator new[](size_t bytes) { return Allocate(bytes, __builtin_return_address(0)); }
// Not inlined, or the compiler sees free meet what operator new returned and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace twinstream::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Heap allocations of two steps of all ranks after three steps, of a device that is profiled or
// not. Also compares the memory plan with what the devices were asked for, and sees
// where on the host the steps' copies begin and end.
int64_t SteadyAllocations(const JobSpec& job, const DeviceMaker& make_device = CpuDevices()) {
  allocations = 0;
  RunRanks(GridShape::From(job.parallel()).ranks(), [&](Transport& transport) {
    auto counted_device = std::make_unique<CountedDevice>(make_device(transport.rank()));
    const CountedDevice& counted = *counted_device;
    std::unique_ptr<Device> device = std::move(counted_device);
    OpProfile profile;
    if (job.metrics().profile()) device = MakeProfiledDevice(std::move(device), profile);
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    const int64_t planned = trainer.memory().total();
    trainer.Materialize();
    trainer.InitializeWeights();
    EXPECT_EQ(counted.counts().allocated, planned);
    const CountedDevice::Counts before = counted.counts();
    int64_t host_allocated = 0;
    for (int64_t step = 1; step <= 5; ++step) {
      if (step == 4) {
        trainer.grid().world().Barrier();
        host_allocated = counted.counts().host_allocated;
        counting = true;
      }
      profile.BeginStep();
      trainer.Step(step, 1e-3, false);
      profile.EndStep();
    }
    trainer.grid().world().Barrier();
    counting = false;
    EXPECT_EQ(profile.rows().empty(), !job.metrics().profile());
    const CountedDevice::Counts after = counted.counts();
    EXPECT_EQ(after.allocated, planned);
    EXPECT_EQ(after.host_allocated, host_allocated);
    EXPECT_GT(after.copies_in, before.copies_in);
    EXPECT_GT(after.copies_out, before.copies_out);
    EXPECT_EQ(after.pageable_copies, before.pageable_copies);
  });
  return allocations;
}

TEST(AllocationTest, StepsAllocateNothingAndTheMemoryPlanIsExact) {
  for (const Layout& layout :
       {Layout{}, Layout{.data = 3}, Layout{.pipeline = 2},
        Layout{.tensor = 4, .sequence_parallel = true}, Layout{.tensor = 2, .pipeline = 2},
        Layout{.context = 2}, Layout{.context = 4, .pipeline = 2},
        Layout{.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED},
        Layout{.pipeline = 2, .schedule = ParallelSpec::ZERO_BUBBLE}}) {
    for (bool tied : {false, true}) {
      JobSpec job = TinyJob();
      job.mutable_train()->set_precision(tied ? TrainSpec::FP32 : TrainSpec::BF16);
      job.mutable_model()->set_tied_embeddings(tied);
      job.mutable_model()->set_kv_heads(2);
      job.mutable_train()->set_global_batch(6);
      job.mutable_model()->set_qk_norm(tied);
      if (tied && layout.schedule != ParallelSpec::ZERO_BUBBLE) {
        job.mutable_parallel()->set_recompute(ParallelSpec::FULL);
      }
      EXPECT_EQ(SteadyAllocations(OnLayout(job, layout)), 0) << NameOf(layout);
    }
  }
}

TEST(AllocationTest, StepsOfMixturesOfExpertsAllocateNothingEither) {
  for (const Layout& layout :
       {Layout{}, Layout{.pipeline = 2, .data = 2, .expert = 2},
        Layout{.tensor = 2, .data = 2, .sequence_parallel = true, .expert = 2}}) {
    JobSpec job = TinyJob();
    job.mutable_train()->set_global_batch(6);
    job.mutable_model()->mutable_moe()->set_experts(4);
    job.mutable_model()->mutable_moe()->set_top_k(2);
    for (TrainSpec::Precision precision : {TrainSpec::FP32, TrainSpec::BF16}) {
      job.mutable_train()->set_precision(precision);
      EXPECT_EQ(SteadyAllocations(OnLayout(job, layout)), 0) << NameOf(layout);
    }
  }
}

// Of the second step, on each rank; an evaluation of the same batch comes before it.
std::vector<int64_t> CopiesOut(const JobSpec& job) {
  const int ranks = GridShape::From(job.parallel()).ranks();
  std::vector<int64_t> copies(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](Transport& transport) {
    CountedDevice device(*MakeDevice("cpu"));
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    trainer.Step(1, 1e-3, false);
    trainer.EvaluationLoss();
    const int64_t before = device.counts().copies_out;
    trainer.Step(2, 1e-3, false);
    copies[static_cast<size_t>(transport.rank())] = device.counts().copies_out - before;
  });
  return copies;
}

// A copy to the host awaits the device: the experts' rows cost one for each forward of a layer and
// micro-batch. What else is copied, a dense model copies too.
TEST(AllocationTest, AForwardOfALayersExpertsCopiesToTheHostOnce) {
  for (const Layout& layout :
       {Layout{}, Layout{.data = 2, .expert = 2}, Layout{.pipeline = 2, .data = 2, .expert = 2},
        Layout{.pipeline = 2, .virtual_stages = 2, .schedule = ParallelSpec::INTERLEAVED},
        Layout{.pipeline = 2, .data = 2, .expert = 2, .schedule = ParallelSpec::ZERO_BUBBLE}}) {
    for (auto recompute : {ParallelSpec::NONE, ParallelSpec::SELECTIVE, ParallelSpec::FULL}) {
      if (layout.schedule == ParallelSpec::ZERO_BUBBLE && recompute != ParallelSpec::NONE) continue;
      JobSpec job = TinyJob();
      job.mutable_train()->set_microbatch(1);
      job.mutable_parallel()->set_recompute(recompute);
      Layout without_experts = layout;
      without_experts.expert = 1;
      const std::vector<int64_t> dense = CopiesOut(OnLayout(job, without_experts));
      job.mutable_model()->mutable_moe()->set_experts(4);
      job.mutable_model()->mutable_moe()->set_top_k(2);
      job = OnLayout(job, layout);
      const std::vector<int64_t> copies = CopiesOut(job);
      SCOPED_TRACE(absl::StrCat(NameOf(layout), " ", ParallelSpec::Recompute_Name(recompute)));
      const int64_t forwards = recompute == ParallelSpec::FULL ? 2 : 1,
                    layers = job.model().layers() / layout.pipeline;
      for (size_t rank = 0; rank < dense.size(); ++rank) {
        EXPECT_EQ(copies[rank] - dense[rank], forwards * layers * AccumulationSteps(job));
      }
    }
  }
}

int64_t PageFaults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Whoever maps memory for a while, as malloc does for large buffers, pays with a fault for every
// page. oneDNN tells of each primitive that it is asked to create when it is asked to be verbose.
TEST(AllocationTest, StepsFaultNoPageAndPrepareNoProduct) {
  JobSpec plain = TinyJob();
  plain.mutable_model()->set_hidden(256);
  plain.mutable_model()->set_heads(4);
  plain.mutable_model()->set_head_dim(64);
  plain.mutable_model()->set_kv_heads(4);
  plain.mutable_model()->set_ffn(688);
  plain.mutable_model()->set_vocabulary(2500);
  plain.mutable_model()->set_sequence(256);
  plain.mutable_train()->set_global_batch(2);
  plain.mutable_train()->set_microbatch(1);
  const JobSpec job = OnLayout(plain, Layout{});
  RunRanks(1, [&](Transport& transport) {
    const std::unique_ptr<Device> device = *MakeDevice("cpu");
    Trainer trainer(job, Purpose::kTraining, AccumulationSteps(job), *device, transport);
    trainer.Materialize();
    trainer.InitializeWeights();
    int64_t step = 0;
    const auto run = [&](int steps) {
      for (int i = 0; i < steps; ++i) trainer.Step(++step, 1e-3, false);
    };
    const auto primitives = [&] {  // of a step
      dnnl_set_verbose(2);
      ::testing::internal::CaptureStdout();
      run(1);
      dnnl_set_verbose(0);
      return ::testing::internal::GetCapturedStdout();
    };
    EXPECT_THAT(primitives(), AllOf(HasSubstr("create"), HasSubstr("exec")));
    run(1);
    const int64_t before = PageFaults();
    run(3);
    // The kernel has some of its own; a buffer of 1 MiB that is mapped anew would have 256.
    EXPECT_LT(PageFaults() - before, 64);

    EXPECT_THAT(primitives(), AllOf(Not(HasSubstr("create")), HasSubstr("exec")));
  });
}

TEST(AllocationTest, StepsWhoseTensorsAreStagedAllocateNothingEither) {
  for (const Layout& layout :
       {Layout{.tensor = 2, .context = 2, .pipeline = 2}, Layout{.pipeline = 2, .data = 2}}) {
    EXPECT_EQ(SteadyAllocations(OnLayout(TinyJob(), layout), RemoteCpuDevices(nullptr)), 0)
        << NameOf(layout);
  }
}

TEST(AllocationTest, ProfiledStepsAllocateNothingEither) {
  for (const Layout& layout : {Layout{}, Layout{.tensor = 2, .data = 2}}) {
    JobSpec job = TinyJob();
    job.mutable_metrics()->set_profile(true);
    EXPECT_EQ(SteadyAllocations(OnLayout(job, layout)), 0) << NameOf(layout);
  }
}

}  // namespace
}  // namespace twinstream::testing
