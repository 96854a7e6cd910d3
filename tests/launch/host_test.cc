#include "launch/host.h"

#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"

namespace twinstream {
namespace {

class ThreadsPerRankTest : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("OMP_NUM_THREADS"); }
  void TearDown() override { unsetenv("OMP_NUM_THREADS"); }

  static int Threads(int asked, int ranks_on_host) {
    RuntimeSpec spec;
    spec.set_threads(asked);
    return ThreadsPerRank(spec, ranks_on_host);
  }
  const int cores_ = static_cast<int>(std::thread::hardware_concurrency());
};

TEST_F(ThreadsPerRankTest, TheJobBeatsTheEnvironment) {
  setenv("OMP_NUM_THREADS", "5", 1);
  EXPECT_EQ(Threads(3, 1), 3);
  EXPECT_EQ(Threads(0, 1), 5);
  EXPECT_EQ(Threads(0, 1000), 5);
}

TEST_F(ThreadsPerRankTest, OtherwiseTheRanksShareTheCoresAndHaveOneAtLeast) {
  EXPECT_EQ(Threads(0, 1), cores_);
  EXPECT_EQ(Threads(0, cores_), 1);
  EXPECT_EQ(Threads(0, cores_ + 1), 1);
}

TEST_F(ThreadsPerRankTest, AnEnvironmentThatIsNoNumberCountsAsUnset) {
  for (const char* value : {"", "many", "0", "-2"}) {
    setenv("OMP_NUM_THREADS", value, 1);
    EXPECT_EQ(Threads(0, 1), cores_) << value;
  }
}

class LostHostsTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("OMPI_COMM_WORLD_RANK", "0", 1); }
  void TearDown() override {
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_MCA_oob_tcp_keepalive_time");
  }
};

TEST_F(LostHostsTest, GoUnnoticedByAnMpirunThatAsksForNoSignsOfLife) {
  EXPECT_TRUE(LostHostsGoUnnoticed({"alpha", "alpha", "beta"}));
  setenv("OMPI_MCA_oob_tcp_keepalive_time", "2", 1);
  EXPECT_FALSE(LostHostsGoUnnoticed({"alpha", "alpha", "beta"}));
}

TEST_F(LostHostsTest, DoNotMatterToOneHostOrAnotherLauncher) {
  EXPECT_FALSE(LostHostsGoUnnoticed({"alpha", "alpha"}));
  unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_FALSE(LostHostsGoUnnoticed({"alpha", "beta"}));
}

TEST(AvailableMemory, IsKnownHere) { EXPECT_GT(AvailableMemory(), 0); }

}  // namespace
}  // namespace twinstream
