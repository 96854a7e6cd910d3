#include "parallel/collectives.h"

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

class CollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  // On every rank, with the communicator of all.
  static void Run(absl::FunctionRef<void(Communicator& world)> body) {
    testing::RunRanks(GetParam(), [&](Transport& transport) {
      ProcessGrid grid({.data = transport.size()}, transport);
      body(grid.world());
    });
  }
};

// Any bytes, zeros among them; a text of its own for every rank and size.
std::string TextOf(int rank, size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank));
  return text;
}

TEST_P(CollectivesTest, TextsOfAnyLengthArriveWhole) {
  for (size_t size : {0, 1, 3, 4, 5, 100003}) {
    Run([&](Communicator& world) {
      EXPECT_EQ(BroadcastText(world, TextOf(world.rank(), size + world.rank())), TextOf(0, size));
    });
  }
}

TEST_P(CollectivesTest, EveryRankGetsEveryText) {
  Run([](Communicator& world) {
    const auto size_of = [](int rank) { return static_cast<size_t>(5 * rank) % 13; };  // 0 too
    const std::vector<std::string> texts =
        GatherTexts(world, TextOf(world.rank(), size_of(world.rank())));
    ASSERT_EQ(static_cast<int>(texts.size()), world.size());
    for (int r = 0; r < world.size(); ++r) {
      EXPECT_EQ(texts[static_cast<size_t>(r)], TextOf(r, size_of(r)));
    }
  });
}

TEST_P(CollectivesTest, ValuesAreSummedOrTheLargestIsTaken) {
  Run([](Communicator& world) {
    const int n = world.size();
    EXPECT_EQ(AllReduceValue(world, world.rank() + 0.5, Reduction::kSum), n * n / 2.0);
    EXPECT_EQ(AllReduceValue(world, -world.rank(), Reduction::kMax), 0);
  });
}

TEST_P(CollectivesTest, TheLowestFailingRanksStatusIsEverybodys) {
  for (int failing = 0; failing < GetParam(); ++failing) {
    Run([&](Communicator& world) {
      const bool fails = world.rank() >= failing;
      const absl::Status own =
          fails ? absl::DataLossError(absl::StrCat("disk of ", world.rank())) : absl::OkStatus();
      const absl::Status agreed = AgreeOnStatus(world, own);
      EXPECT_TRUE(absl::IsDataLoss(agreed));
      const std::string message = absl::StrCat("disk of ", failing);
      EXPECT_EQ(agreed.message(),
                world.size() == 1 ? message : absl::StrCat("rank ", failing, ": ", message));
    });
  }
}

TEST_P(CollectivesTest, NobodyIsNamedWhereAllFailAlikeOrNobodyFails) {
  Run([](Communicator& world) {
    EXPECT_TRUE(AgreeOnStatus(world, absl::OkStatus()).ok());
    const absl::Status alike = absl::NotFoundError("no such file");
    EXPECT_EQ(AgreeOnStatus(world, alike), alike);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesTest, ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace twinstream
