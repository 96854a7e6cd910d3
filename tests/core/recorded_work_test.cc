// Recorded work, on every device: nothing is done before it is run, and it is done as it was given.
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/ops.h"
#include "gtest/gtest.h"
#include "tests/testing/tested_device.h"

namespace twinstream::testing {
namespace {

using Matrix = std::vector<float>;  // [2, 2]

class RecordedWorkTest : public ::testing::Test {
 protected:
  Tensor Make() {
    memory_.emplace_back(*device_, 4 * SizeOf(DType::kF32));
    return {memory_.back().data(), DType::kF32, {2, 2}};
  }
  Matrix ValuesOf(Tensor tensor) {
    Matrix values(4);
    device_->CopyOut(values.data(), tensor);
    return values;
  }

  const std::unique_ptr<Device> device_ = TestedDevices()(0);
  std::vector<Storage> memory_;
};

TEST_F(RecordedWorkTest, IsNotDoneWhileItIsRecorded) {
  const Tensor a = Make();
  const Matrix values = {1, 2, 3, 4};
  device_->CopyIn(a, values.data());
  const auto work = device_->Record([&] { device_->ops().Zero(a); });
  EXPECT_EQ(ValuesOf(a), values);
  EXPECT_EQ(work == nullptr, device_->name() == "cpu");
}

TEST_F(RecordedWorkTest, RunsInItsOrderWithTheArgumentsOfThenOnTheDataOfNow) {
  const Tensor a = Make(), b = Make(), sum = Make(), product = Make(), copy = Make();
  const Ops& ops = device_->ops();
  float factor = 2;
  bool accumulate = false;
  const auto issue = [&] {
    ops.Zero(sum);
    ops.Add(sum, a);
    ops.Add(sum, b);
    ops.Scale(sum, factor);
    ops.Matmul(product, sum, b, {.accumulate = accumulate});
    device_->Copy(copy, product);
  };
  issue();  // what operations run with is chosen at their first call
  const auto work = device_->Record(issue);
  if (work == nullptr) GTEST_SKIP() << device_->name() << " records nothing";
  factor = 100;
  accumulate = true;
  const auto run = [&](const Matrix& a_values, const Matrix& b_values) {
    device_->CopyIn(a, a_values.data());
    device_->CopyIn(b, b_values.data());
    work->Run();
    return ValuesOf(copy);
  };
  EXPECT_EQ(run({1, 2, 3, 4}, {1, 0, 0, 1}), Matrix({4, 4, 6, 10}));
  EXPECT_EQ(run({1, 2, 3, 4}, {1, 0, 0, 1}), Matrix({4, 4, 6, 10}));
  EXPECT_EQ(run({0, 1, 0, 1}, {0, 1, 1, 0}), Matrix({4, 0, 2, 2}));
}

}  // namespace
}  // namespace twinstream::testing
