#include "core/token_dataset.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenDatasetTest : public ::testing::Test {
 protected:
  TokenDatasetTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~TokenDatasetTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::string Quoted(const std::string& name) const { return absl::StrCat("\"", Path(name), "\""); }

  // A file of `count` tokens first, first + 1, ...
  template <typename Token>
  std::string WriteRange(const std::string& name, int64_t first, int64_t count) const {
    std::vector<Token> tokens(count);
    for (int64_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(first + i);
    std::ofstream(Path(name), std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()),
               static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
    return Path(name);
  }

  // A file of zeros that takes no room on the disk, with one two-byte token set.
  std::string WriteSparse(const std::string& name, int64_t bytes, int64_t index,
                          uint16_t value) const {
    std::ofstream file(Path(name), std::ios::binary);
    file.seekp(2 * index).write(reinterpret_cast<const char*>(&value), 2);
    file.close();
    std::filesystem::resize_file(Path(name), static_cast<uintmax_t>(bytes));
    return Path(name);
  }

 private:
  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("token_dataset_test." + std::to_string(getpid()));
};

TokenDatasetOptions Options(const std::vector<TokenFileOptions>& files, int64_t sequence) {
  return {.name = "data.train", .files = files, .sequence = sequence, .vocabulary = 65536};
}

TokenDataset OpenOrDie(const TokenDatasetOptions& options) {
  absl::StatusOr<TokenDataset> dataset = TokenDataset::Open(options);
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

std::vector<int32_t> ReadSample(const TokenDataset& dataset, int64_t sample) {
  std::vector<int32_t> tokens(dataset.sequence() + 1);
  EXPECT_TRUE(dataset.Read(sample, absl::MakeSpan(tokens)).ok());
  return tokens;
}

std::vector<int32_t> FirstTokens(const TokenDataset& dataset, int64_t begin, int64_t end) {
  std::vector<int32_t> first;
  for (int64_t g = begin; g < end; ++g) first.push_back(ReadSample(dataset, g)[0]);
  return first;
}

std::string Message(const TokenDatasetOptions& options) {
  const absl::Status status = TokenDataset::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_F(TokenDatasetTest, WindowsStrideByTheSequenceAndNoneCrossesAFile) {
  // T = 4: 13 tokens give 3 windows (the last token is the third's target), 12 give 2, 5 give 1.
  TokenDatasetOptions options = Options({{WriteRange<uint16_t>("a", 0, 13)},
                                         {WriteRange<uint16_t>("b", 100, 12)},
                                         {WriteRange<uint16_t>("c", 200, 5)}},
                                        4);
  options.order = TokenOrder::kSequential;
  const TokenDataset dataset = OpenOrDie(options);
  EXPECT_EQ(dataset.tokens(), 30);
  EXPECT_EQ(dataset.windows(), 6);
  EXPECT_EQ(dataset.Epochs(9), 1.5);
  EXPECT_THAT(FirstTokens(dataset, 0, 13),
              ::testing::ElementsAre(0, 4, 8, 100, 104, 200, 0, 4, 8, 100, 104, 200, 0));
  for (int64_t g = 0; g < 6; ++g) {
    const std::vector<int32_t> tokens = ReadSample(dataset, g);
    for (int i = 1; i < 5; ++i) EXPECT_EQ(tokens[i], tokens[0] + i);
  }
}

TEST_F(TokenDatasetTest, FourByteTokensKeepTheirValues) {
  TokenDatasetOptions options = Options({{WriteRange<uint32_t>("a", 1000000, 9)}}, 8);
  options.bytes_per_token = 4;
  options.vocabulary = 1000009;
  const TokenDataset dataset = OpenOrDie(options);
  EXPECT_THAT(ReadSample(dataset, 0),
              ::testing::ElementsAre(1000000, 1000001, 1000002, 1000003, 1000004, 1000005, 1000006,
                                     1000007, 1000008));
  EXPECT_TRUE(dataset.CheckTokens(0, 1).ok());
  options.vocabulary = 1000008;
  EXPECT_THAT(OpenOrDie(options).CheckTokens(0, 1).message(),
              HasSubstr("token 8 (byte offset 32) is 1000008, but model.vocabulary is 1000008"));
}

TEST_F(TokenDatasetTest, EveryMistakeIsNamedAtOnce) {
  std::ofstream(Path("empty")).flush();
  std::ofstream(Path("odd")) << "12345";
  std::filesystem::create_directory(Path("folder"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string message = Message(Options({{Path("missing")},
                                               {Path("empty")},
                                               {Path("odd")},
                                               {WriteRange<uint16_t>("short", 0, 100)},
                                               {Path("folder")},
                                               {WriteRange<uint16_t>("good", 0, 129), -1},
                                               {Path("pipe")}},
                                              128));
  EXPECT_THAT(message,
              AllOf(HasSubstr(absl::StrCat("data.train[0].path ", Quoted("missing"),
                                           " cannot be found (No such file")),
                    HasSubstr(absl::StrCat("data.train[1].path ", Quoted("empty"), " is empty")),
                    HasSubstr(absl::StrCat("data.train[2].path ", Quoted("odd"), " has 5 bytes")),
                    HasSubstr(absl::StrCat(Quoted("short"),
                                           " has 100 tokens, but one window needs model.sequence "
                                           "+ 1 = 129")),
                    HasSubstr(absl::StrCat(Quoted("folder"), " is not a regular file")),
                    HasSubstr("data.train[5].weight = -1"),
                    HasSubstr(absl::StrCat(Quoted("pipe"), " is not a regular file"))));
  EXPECT_THAT(Message(Options({}, 4)), HasSubstr("names no token file"));
}

TEST_F(TokenDatasetTest, OneWindowIsEnough) {
  const TokenDataset dataset = OpenOrDie(Options({{WriteRange<uint16_t>("a", 5, 9)}}, 8));
  EXPECT_EQ(dataset.windows(), 1);
  EXPECT_EQ(FirstTokens(dataset, 0, 3), std::vector<int32_t>({5, 5, 5}));
}

TEST_F(TokenDatasetTest, EveryEpochShowsEveryWindowOnceInItsOwnOrder) {
  const int64_t windows = 500;
  const TokenDatasetOptions options = Options({{WriteRange<uint16_t>("a", 0, 4 * windows + 1)}}, 4);
  const TokenDataset dataset = OpenOrDie(options);
  std::set<std::vector<int32_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int32_t> order = FirstTokens(dataset, epoch * windows, (epoch + 1) * windows);
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), windows);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 3u);
  TokenDatasetOptions reseeded = options;
  reseeded.seed = 1;
  EXPECT_NE(FirstTokens(OpenOrDie(reseeded), 0, windows), FirstTokens(dataset, 0, windows));
  // A dataset opened again in the middle of an epoch goes on exactly.
  const std::vector<int32_t> all = FirstTokens(dataset, 0, 2 * windows);
  EXPECT_EQ(FirstTokens(OpenOrDie(options), 750, 1000),
            std::vector<int32_t>(all.begin() + 750, all.end()));
}

TEST_F(TokenDatasetTest, FilesGetSamplesInProportionToTheirWeightsAtEveryMoment) {
  const std::vector<double> weights = {0.5, 3, 1, 0.1, 1};
  double sum = 0;
  std::vector<TokenFileOptions> files;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    files.push_back(
        {WriteRange<uint16_t>(name, 10000 * static_cast<int64_t>(i), 4 * 37 + 1), weights[i]});
    sum += weights[i];
  }
  const TokenDataset dataset = OpenOrDie(Options(files, 4));
  std::vector<int64_t> counts(weights.size());
  for (int64_t g = 0; g < 5000; ++g) {
    ++counts[ReadSample(dataset, g)[0] / 10000];
    for (size_t i = 0; i < weights.size(); ++i) {
      const double due = static_cast<double>(g + 1) * weights[i] / sum;
      ASSERT_NEAR(static_cast<double>(counts[i]), due, static_cast<double>(i) + 1.01)
          << "file " << i << " after " << g + 1 << " samples";
    }
  }
}

TEST_F(TokenDatasetTest, EachOfSeveralFilesShowsEachWindowOncePerEpoch) {
  const int64_t windows = 40;
  const TokenDataset dataset =
      OpenOrDie(Options({{WriteRange<uint16_t>("a", 0, 4 * windows + 1), 2},
                         {WriteRange<uint16_t>("b", 10000, 4 * windows + 1), 1}},
                        4));
  std::map<int32_t, std::vector<int32_t>> seen;  // by file
  for (const int32_t first : FirstTokens(dataset, 0, 6 * windows)) {
    seen[first / 10000].push_back(first % 10000);
  }
  ASSERT_NEAR(static_cast<double>(seen[0].size()), 4.0 * windows, 1.01);
  for (const auto& [file, order] : seen) {
    const size_t whole = order.size() / windows;  // epochs; the last may miss a sample
    for (size_t epoch = 0; epoch < whole; ++epoch) {
      const auto begin = order.begin() + static_cast<int64_t>(epoch) * windows;
      EXPECT_EQ(std::set<int32_t>(begin, begin + windows).size(), windows);
    }
  }
  // Files of equal length do not go in step.
  EXPECT_NE(std::vector<int32_t>(seen[0].begin(), seen[0].begin() + windows - 1),
            std::vector<int32_t>(seen[1].begin(), seen[1].begin() + windows - 1));
}

TEST_F(TokenDatasetTest, ABadTokenAnywhereIsFoundByExactlyOnePart) {
  const int64_t count = 600000;  // more than two chunks
  const std::string a = WriteSparse("a", 2 * count, 3, 9), c = WriteSparse("c", 2 * count, 0, 1);
  for (const int64_t bad : {int64_t{0}, int64_t{262143}, int64_t{262144}, count - 1}) {
    TokenDatasetOptions options = Options({{a}, {WriteSparse("b", 2 * count, bad, 511)}, {c}}, 16);
    options.vocabulary = 511;
    const TokenDataset dataset = OpenOrDie(options);
    for (const int parts : {1, 2, 3, 64}) {
      int found = 0;
      for (int part = 0; part < parts; ++part) {
        const absl::Status status = dataset.CheckTokens(part, parts);
        if (status.ok()) continue;
        ++found;
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(),
                    HasSubstr(absl::StrCat(Quoted("b"), ": token ", bad, " (byte offset ", 2 * bad,
                                           ") is 511, but model.vocabulary is 511")));
      }
      EXPECT_EQ(found, 1) << parts << " parts, token " << bad;
    }
    options.vocabulary = 512;
    EXPECT_TRUE(OpenOrDie(options).CheckTokens(0, 1).ok());
  }
}

TEST_F(TokenDatasetTest, LargeFilesAreSampledAndCheckedAsTheyAreRead) {
  const int64_t bytes = (int64_t{1} << 30) + (int64_t{1} << 26), bad = 18000005;
  TokenDatasetOptions options = Options({{WriteSparse("large", bytes, bad, 300)}}, 1000);
  options.vocabulary = 256;
  options.order = TokenOrder::kSequential;
  const TokenDataset dataset = OpenOrDie(options);
  EXPECT_TRUE(dataset.CheckTokens(0, 1).ok());  // not in one of the sampled chunks
  std::vector<int32_t> tokens(1001);
  EXPECT_TRUE(dataset.Read(bad / 1000 - 1, absl::MakeSpan(tokens)).ok());
  const absl::Status status = dataset.Read(bad / 1000, absl::MakeSpan(tokens));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("token 18000005 (byte offset 36000010) is 300"));

  TokenDatasetOptions sampled = Options({{WriteSparse("sampled", bytes, 64 << 18, 300)}}, 1000);
  sampled.vocabulary = 256;
  EXPECT_FALSE(OpenOrDie(sampled).CheckTokens(0, 1).ok());
}

TEST_F(TokenDatasetTest, IndicesBeyondThirtyTwoBitsAreExact) {
  const int64_t tokens = (int64_t{1} << 32) + 100005;  // 8 GiB, sparse
  TokenDatasetOptions options = Options({{WriteSparse("huge", 2 * tokens, tokens - 1, 77)}}, 100);
  options.order = TokenOrder::kSequential;
  const TokenDataset dataset = OpenOrDie(options);
  const int64_t last = (tokens - 1) / 100 - 1;
  EXPECT_EQ(dataset.windows(), last + 1);
  ASSERT_EQ((last + 1) * 100, tokens - 1);  // the file's last token is the last window's
  EXPECT_EQ(ReadSample(dataset, last + dataset.windows())[100], 77);
  EXPECT_EQ(ReadSample(dataset, last)[99], 0);
  // Shuffled: positions far beyond any run still name valid windows of both files.
  TokenDatasetOptions both = options;
  both.files.push_back({WriteRange<uint16_t>("small", 1000, 101)});
  both.order = TokenOrder::kShuffled;
  const TokenDataset mixed = OpenOrDie(both);
  const int64_t far = int64_t{1} << 61;
  EXPECT_THAT(
      std::set<bool>({ReadSample(mixed, far)[0] == 1000, ReadSample(mixed, far + 1)[0] == 1000}),
      ::testing::UnorderedElementsAre(true, false));
}

}  // namespace
}  // namespace twinstream
