// What launch/host.h measures, of an emulated card.
#include "gtest/gtest.h"
#include "launch/host.h"
#include "tests/testing/tested_device.h"

namespace twinstream::testing {
namespace {

TEST(EmulatedHost, APeakThatWouldTakeSecondsIsMeasuredWithLess) {
  EXPECT_EQ(PeakExtent(*TestedDevices()(/*rank=*/0)), 1024);
}

}  // namespace
}  // namespace twinstream::testing
