// The order of CudaDevice's work with that of a device beside it, and of recorded work, on an
// emulated card. Its memory is the host's, so tests see what has been done so far.
#include <memory>

#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "core/ops.h"
#include "gtest/gtest.h"

namespace twinstream::testing {
namespace {

class CudaOrderTest : public ::testing::Test {
 protected:
  // a and b: one float32 each.
  Tensor a() const { return {memory_.data(), DType::kF32, {1}}; }
  Tensor b() const { return {memory_.data() + 256, DType::kF32, {1}}; }
  float ValueOf(Tensor tensor) const { return *tensor.As<float>(); }
  void SetUp() override {
    const float one = 1;
    device_.CopyIn(a(), &one);
    device_.CopyIn(b(), &one);
    Allow(Issued());
  }
  void TearDown() override { Allow(gpu::kAllWork); }

  int64_t Issued() const { return gpu::PiecesIssued(device_.stream()); }
  // The device does so much of its work; the one beside it does all that it can.
  void Allow(int64_t pieces) { gpu::AllowWork(device_.stream(), pieces); }
  DeviceNetwork& network() { return *device_.network(); }

  CudaDevice device_{/*card=*/0};
  const std::unique_ptr<Device> beside_ = device_.network()->Beside();
  const Storage memory_{device_, 512};
};

// ---- A device beside it.

TEST_F(CudaOrderTest, WorkBesideDoesNotWait) {
  device_.ops().Scale(a(), 2);
  beside_->ops().Scale(b(), 5);
  beside_->Synchronize();
  EXPECT_EQ(ValueOf(b()), 5);
  EXPECT_EQ(ValueOf(a()), 1);
}

TEST_F(CudaOrderTest, WorkBesideWaitsForAMarkAndForNothingBehindIt) {
  device_.ops().Scale(a(), 2);
  const int64_t before_mark = Issued(), mark = network().Mark(), marked = Issued();
  device_.ops().Scale(a(), 3);
  beside_->network()->Await(network(), mark);
  beside_->ops().Scale(b(), 5);
  Allow(before_mark);
  EXPECT_EQ(ValueOf(a()), 2);
  EXPECT_EQ(ValueOf(b()), 1);
  Allow(marked);
  EXPECT_EQ(ValueOf(a()), 2);
  EXPECT_EQ(ValueOf(b()), 5);
}

TEST_F(CudaOrderTest, WorkWaitsForAMarkOfTheDeviceBeside) {
  cudaStream_t const stream = dynamic_cast<CudaDevice&>(*beside_).stream();
  gpu::AllowWork(stream, gpu::PiecesIssued(stream));
  beside_->ops().Scale(b(), 5);
  network().Await(*beside_->network(), beside_->network()->Mark());
  device_.ops().Add(a(), b());
  Allow(gpu::kAllWork);
  EXPECT_EQ(ValueOf(a()), 1);
  gpu::AllowWork(stream, gpu::kAllWork);
  EXPECT_EQ(ValueOf(a()), 6);
}

// Its event may be another mark's by now, for which one waits in its place.
TEST_F(CudaOrderTest, WorkBesideWaitsForAnOldMarkOrOneSomeTimeLater) {
  device_.ops().Scale(a(), 2);
  const int64_t before_marks = Issued(), mark = network().Mark();
  for (int i = 0; i < 300; ++i) network().Mark();
  const int64_t marked = Issued();
  device_.ops().Scale(a(), 3);
  beside_->network()->Await(network(), mark);
  beside_->ops().Scale(b(), 5);
  Allow(before_marks);
  EXPECT_EQ(ValueOf(b()), 1);
  Allow(marked);
  EXPECT_EQ(ValueOf(a()), 2);
  EXPECT_EQ(ValueOf(b()), 5);
}

// ---- Recorded work.

TEST_F(CudaOrderTest, TwoRecordingsRunInTurn) {
  const auto twice = device_.Record([&] { device_.ops().Scale(a(), 2); });
  const auto one_more = device_.Record([&] { device_.ops().Add(a(), b()); });
  for (int i = 0; i < 2; ++i) {
    twice->Run();
    one_more->Run();
  }
  one_more->Run();
  twice->Run();
  Allow(Issued());
  EXPECT_EQ(ValueOf(a()), (((1 * 2 + 1) * 2 + 1) + 1) * 2);
}

TEST_F(CudaOrderTest, ARecordingMayGoBeforeItsWorkIsDone) {
  auto twice = device_.Record([&] { device_.ops().Scale(a(), 2); });
  twice->Run();
  twice.reset();
  EXPECT_EQ(ValueOf(a()), 1);
  Allow(Issued());
  EXPECT_EQ(ValueOf(a()), 2);
}

// A call of a library's, say, that CUDA forbids meanwhile and that goes on without it.
TEST_F(CudaOrderTest, ABrokenRecordingIsNoneAndLeavesTheDeviceAsItWas) {
  const auto work = device_.Record([&] {
    device_.ops().Scale(a(), 2);
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, 16), cudaErrorStreamCaptureUnsupported);
  });
  EXPECT_EQ(work, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the next launch would be blamed for it";
  device_.ops().Scale(b(), 5);
  Allow(Issued());
  EXPECT_EQ(ValueOf(a()), 1);
  EXPECT_EQ(ValueOf(b()), 5);
  EXPECT_NE(device_.Record([&] { device_.ops().Scale(a(), 2); }), nullptr);
}

using CudaOrderDeathTest = CudaOrderTest;

TEST_F(CudaOrderDeathTest, MemoryWaitsAndRecordingsAreForbiddenInARecording) {
  const auto die = [&](absl::FunctionRef<void()> issue) { device_.Record(issue); };
  float value = 0;
  EXPECT_DEATH(die([&] { device_.CopyOut(&value, a()); }),
               "the host reads while the device records its work");
  EXPECT_DEATH(die([&] { device_.CopyIn(a(), &value); }),
               "the host writes while the device records its work");
  EXPECT_DEATH(die([&] { device_.Synchronize(); }),
               "the host waits while the device records its work");
  EXPECT_DEATH(die([&] { device_.Allocate(16); }),
               "memory is allocated while the device records its work");
  std::byte* const data = device_.Allocate(16);
  std::byte* const host = device_.AllocateHost(16);
  EXPECT_DEATH(die([&] { device_.Free(data, 16); }),
               "memory is freed while the device records its work");
  EXPECT_DEATH(die([&] { device_.AllocateHost(16); }),
               "memory of the host is allocated while the device records its work");
  EXPECT_DEATH(die([&] { device_.FreeHost(host, 16); }),
               "memory of the host is freed while the device records its work");
  EXPECT_DEATH(die([&] { device_.Record([] {}); }),
               "another recording begins while the device records its work");
  Allow(Issued());
  device_.FreeHost(host, 16);
  device_.Free(data, 16);
}

}  // namespace
}  // namespace twinstream::testing
