#include "launch/batch_loader.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/sequence_shard.h"

namespace twinstream {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kSequence = 4;

// One file of tokens 0, 1, 2, ...: window k begins with token 4k.
class BatchLoaderTest : public ::testing::Test {
 protected:
  ~BatchLoaderTest() override { std::filesystem::remove(path_); }

  TokenDataset Open(int64_t tokens, TokenOrder order) const {
    std::vector<uint16_t> values(tokens);
    std::iota(values.begin(), values.end(), uint16_t{0});
    std::ofstream(path_, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(2 * values.size()));
    absl::StatusOr<TokenDataset> dataset = TokenDataset::Open({.name = "data.train",
                                                               .files = {{path_.string()}},
                                                               .sequence = kSequence,
                                                               .vocabulary = 65536,
                                                               .order = order});
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    return *std::move(dataset);
  }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("batch_loader_test." + std::to_string(getpid()));
};

struct Batch {
  std::vector<int32_t> tokens, targets;
};

Batch EmptyBatch(const BatchShape& shape) {
  const size_t size = shape.microbatches * shape.microbatch * kSequence;
  return {std::vector<int32_t>(size, -7), std::vector<int32_t>(size, -7)};
}

// The windows' numbers in a rank's batch, row by row.
std::vector<int64_t> Windows(const Batch& batch) {
  std::vector<int64_t> windows;
  for (size_t i = 0; i < batch.tokens.size(); i += kSequence) {
    windows.push_back(batch.tokens[i] / kSequence);
    for (size_t j = i; j < i + kSequence; ++j) {
      EXPECT_EQ(batch.tokens[j], batch.tokens[i] + static_cast<int32_t>(j - i));
      EXPECT_EQ(batch.targets[j], batch.tokens[j] + 1);
    }
  }
  return windows;
}

TEST_F(BatchLoaderTest, MicroBatchesGoRoundTheDataRanks) {
  const TokenDataset dataset = Open(4 * 100 + 1, TokenOrder::kSequential);
  const BatchShape shape = {.microbatches = 2, .microbatch = 3, .data_ranks = 2, .data_rank = 1};
  Batch batch = EmptyBatch(shape);
  const BatchLoader loader(dataset, shape);
  ASSERT_TRUE(loader.Load(12, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets)).ok());
  EXPECT_THAT(Windows(batch), ElementsAre(15, 16, 17, 21, 22, 23));
}

TEST_F(BatchLoaderTest, EveryLayoutTrainsOnTheSameSamples) {
  const int64_t global_batch = 24;
  for (const TokenOrder order : {TokenOrder::kSequential, TokenOrder::kShuffled}) {
    const TokenDataset dataset = Open(4 * 1000 + 1, order);
    for (const int64_t first : {int64_t{0}, 5 * global_batch}) {
      std::vector<int64_t> expected;
      std::vector<int32_t> window(kSequence + 1);
      for (int64_t g = first; g < first + global_batch; ++g) {
        ASSERT_TRUE(dataset.Read(g, absl::MakeSpan(window)).ok());
        expected.push_back(window[0] / kSequence);
      }
      int layouts = 0;
      for (int64_t D = 1; D <= global_batch; ++D) {
        for (int64_t B = 1; D * B <= global_batch; ++B) {
          if (global_batch % (D * B) != 0) continue;
          std::vector<int64_t> together;
          for (int64_t rank = 0; rank < D; ++rank) {
            const BatchShape shape = {global_batch / (D * B), B, D, rank};
            Batch batch = EmptyBatch(shape);
            ASSERT_TRUE(
                BatchLoader(dataset, shape)
                    .Load(first, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets))
                    .ok());
            for (const int64_t k : Windows(batch)) together.push_back(k);
          }
          ++layouts;
          EXPECT_THAT(together, ::testing::UnorderedElementsAreArray(expected))
              << D << " ranks, micro-batch " << B;
        }
      }
      EXPECT_EQ(layouts, 30);
    }
  }
}

// Every token of every sequence is on one context rank, with the target that follows it there.
TEST_F(BatchLoaderTest, ContextRanksShareOutEverySequence) {
  const TokenDataset dataset = Open(4 * 100 + 1, TokenOrder::kShuffled);
  const int64_t rows = 6;
  const BatchShape shape = {.microbatches = 3, .microbatch = 2, .data_ranks = 2, .data_rank = 1};
  Batch whole = EmptyBatch(shape);
  ASSERT_TRUE(BatchLoader(dataset, shape)
                  .Load(12, absl::MakeSpan(whole.tokens), absl::MakeSpan(whole.targets))
                  .ok());
  for (const int ranks : {1, 2}) {
    const int64_t tokens = kSequence / ranks;
    std::vector<int32_t> together(whole.tokens.size(), -7);
    for (int rank = 0; rank < ranks; ++rank) {
      BatchShape part = shape;
      part.context_ranks = ranks;
      part.context_rank = rank;
      Batch batch = {std::vector<int32_t>(rows * tokens), std::vector<int32_t>(rows * tokens)};
      ASSERT_TRUE(BatchLoader(dataset, part)
                      .Load(12, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets))
                      .ok());
      const SequenceShard shard = {.sequence = kSequence, .ranks = ranks, .rank = rank};
      for (int64_t i = 0; i < rows * tokens; ++i) {
        const int64_t place = i / tokens * kSequence + shard.Position(i % tokens);
        EXPECT_EQ(together[place], -7) << "a token on two ranks";
        together[place] = batch.tokens[i];
        EXPECT_EQ(batch.targets[i], whole.targets[place]);
      }
    }
    EXPECT_EQ(together, whole.tokens);
  }
}

TEST_F(BatchLoaderTest, ABatchLargerThanTheDataGoesRound) {
  const TokenDataset dataset = Open(4 * 3 + 1, TokenOrder::kSequential);
  const BatchShape shape = {.microbatches = 1, .microbatch = 8};
  Batch batch = EmptyBatch(shape);
  ASSERT_TRUE(BatchLoader(dataset, shape)
                  .Load(8, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets))
                  .ok());
  EXPECT_THAT(Windows(batch), ElementsAre(2, 0, 1, 2, 0, 1, 2, 0));
}

TEST_F(BatchLoaderTest, EvaluationSeesEveryWindowOnceAndPadsTheRest) {
  const int64_t windows = 21;
  const TokenDataset dataset = Open(4 * windows + 3, TokenOrder::kSequential);
  for (const int64_t D : {1, 2, 4}) {
    const int64_t global_batch = 8;
    std::vector<int64_t> seen(windows);
    int64_t targets = 0;
    for (int64_t first = 0; first < 32; first += global_batch) {
      for (int64_t rank = 0; rank < D; ++rank) {
        const BatchShape shape = {global_batch / (D * 2), 2, D, rank};
        Batch batch = EmptyBatch(shape);
        const absl::StatusOr<int64_t> real =
            BatchLoader(dataset, shape)
                .LoadEvaluation(first, absl::MakeSpan(batch.tokens), absl::MakeSpan(batch.targets));
        ASSERT_TRUE(real.ok());
        if (rank == 0) targets += *real;
        for (size_t i = 0; i < batch.tokens.size(); i += kSequence) {
          const std::vector<int32_t> row(
              batch.targets.begin() + static_cast<int64_t>(i),
              batch.targets.begin() + static_cast<int64_t>(i) + kSequence);
          if (row[0] >= 0) {
            ++seen[batch.tokens[i] / kSequence];
            EXPECT_EQ(row[0], batch.tokens[i] + 1);
          } else {
            EXPECT_THAT(row, Each(-1));
            EXPECT_EQ(batch.tokens[i], 0);
          }
        }
      }
    }
    EXPECT_THAT(seen, Each(1));
    EXPECT_EQ(targets, windows * kSequence);
  }
}

}  // namespace
}  // namespace twinstream
