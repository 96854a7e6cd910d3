#include "core/token_dataset.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/permutation.h"

namespace twinstream {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

constexpr int64_t kWholeScanBytes = int64_t{1} << 30;  // larger files are sampled
constexpr int64_t kSampledChunks = 64;                 // one of so many is scanned
constexpr int64_t kChunkTokens = int64_t{1} << 18;

// floor(i * share / 2^32): how many of the first i samples belong to a file with that share.
int64_t SamplesOf(int64_t i, uint64_t share) {
  return static_cast<int64_t>((static_cast<unsigned __int128>(i) * share) >> 32);
}

template <typename Token>
int64_t FindAtLeast(const std::byte* data, int64_t begin, int64_t end, int64_t limit) {
  const Token* tokens = reinterpret_cast<const Token*>(data);  // mappings are aligned
  Token largest = 0;  // a loop without exits, which the compiler vectorises
  for (int64_t i = begin; i < end; ++i) largest = std::max(largest, tokens[i]);
  if (int64_t{largest} < limit) return -1;
  return std::find_if(tokens + begin, tokens + end,
                      [limit](Token token) { return int64_t{token} >= limit; }) -
         tokens;
}

template <typename Token>
void Widen(const std::byte* data, int64_t begin, absl::Span<int32_t> tokens) {
  const Token* from = reinterpret_cast<const Token*>(data) + begin;
  std::transform(from, from + tokens.size(), tokens.begin(),
                 [](Token token) { return static_cast<int32_t>(token); });
}

}  // namespace

absl::StatusOr<TokenDataset> TokenDataset::Open(const TokenDatasetOptions& options) {
  if (options.files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.name, " names no token file; give at least one path"));
  }
  TokenDataset dataset(options);
  std::vector<std::string> mistakes;
  for (size_t i = 0; i < options.files.size(); ++i) {
    const TokenFileOptions& file = options.files[i];
    if (!(file.weight > 0 && std::isfinite(file.weight))) {
      mistakes.push_back(absl::StrFormat("%s[%d].weight = %g; it must be positive and finite",
                                         options.name, i, file.weight));
    }
    absl::StatusOr<TokenFile> opened = dataset.OpenFile(file);
    if (opened.ok()) {
      dataset.files_.push_back(*std::move(opened));
    } else {
      mistakes.push_back(absl::StrCat(options.name, "[", i, "].path \"", file.path, "\" ",
                                      opened.status().message()));
    }
  }
  if (!mistakes.empty()) return absl::InvalidArgumentError(absl::StrJoin(mistakes, "\n"));
  dataset.ShareOutSamples(options.files);
  return dataset;
}

TokenDataset::TokenDataset(const TokenDatasetOptions& options)
    : name_(options.name),
      bytes_per_token_(options.bytes_per_token),
      sequence_(options.sequence),
      vocabulary_(options.vocabulary),
      order_(options.order),
      seed_(options.seed) {
  Check(bytes_per_token_ == 2 || bytes_per_token_ == 4, "tokens of %d bytes", bytes_per_token_);
  Check(sequence_ >= 1, "sequences of %d tokens", sequence_);
  Check(vocabulary_ >= 1 && vocabulary_ <= INT32_MAX, "vocabulary of %d tokens", vocabulary_);
}

absl::StatusOr<TokenDataset::TokenFile> TokenDataset::OpenFile(
    const TokenFileOptions& options) const {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(options.path, error);
  if (!std::filesystem::exists(status)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot be found (", error.message(),
        "); correct the path, or put raw token "
        "ids below ",
        vocabulary_, " there (`twinstream prepare-data` makes them of bytes, below 256)"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError("is not a regular file; name one file of tokens");
  }
  absl::StatusOr<MappedFile> mapping = MappedFile::Open(options.path);
  if (!mapping.ok()) return mapping.status();
  const int64_t bytes = static_cast<int64_t>(mapping->bytes().size());
  if (bytes == 0) return absl::InvalidArgumentError("is empty; a token file holds raw token ids");
  if (bytes % bytes_per_token_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("has %d bytes, which is no multiple of the %d bytes of a token; it is cut "
                        "off or of another data.format",
                        bytes, bytes_per_token_));
  }
  const int64_t tokens = bytes / bytes_per_token_;
  if (tokens < sequence_ + 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "has %d tokens, but one window needs model.sequence + 1 = %d; give a longer "
        "file or a shorter sequence",
        tokens, sequence_ + 1));
  }
  return TokenFile{.mapping = *std::move(mapping),
                   .tokens = tokens,
                   .windows = (tokens - 1) / sequence_,
                   .share = 0};
}

// The first file is split from the rest, then the second from what is left, and so on. A share is
// kept off 0 and 1, so that every file is read at last.
void TokenDataset::ShareOutSamples(absl::Span<const TokenFileOptions> options) {
  const double one = 4294967296.0;  // 2^32
  double rest = 0;
  for (size_t i = files_.size(); i-- > 0;) {
    rest += options[i].weight;
    files_[i].share =
        static_cast<uint64_t>(std::clamp(std::round(options[i].weight / rest * one), 1.0, one - 1));
  }
}

int64_t TokenDataset::tokens() const {
  int64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.tokens;
  return sum;
}

int64_t TokenDataset::windows() const {
  int64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.windows;
  return sum;
}

double TokenDataset::Epochs(int64_t samples) const {
  return static_cast<double>(samples) / static_cast<double>(windows());
}

// The files' chunks are dealt to the parts in turn.
absl::Status TokenDataset::CheckTokens(int part, int parts) const {
  Check(part >= 0 && part < parts, "part %d of %d", part, parts);
  int64_t turn = 0;
  for (const TokenFile& file : files_) {
    const int64_t step =
        kChunkTokens * (file.tokens * bytes_per_token_ <= kWholeScanBytes ? 1 : kSampledChunks);
    for (int64_t begin = 0; begin < file.tokens; begin += step, ++turn) {
      if (turn % parts != part) continue;
      const int64_t bad = FindBadToken(file, begin, std::min(begin + kChunkTokens, file.tokens));
      if (bad >= 0) return absl::InvalidArgumentError(DescribeBadToken(file, bad));
    }
  }
  return absl::OkStatus();
}

absl::Status TokenDataset::Read(int64_t sample, absl::Span<int32_t> tokens) const {
  Check(sample >= 0, "sample %d", sample);
  Check(static_cast<int64_t>(tokens.size()) == sequence_ + 1, "room for %d tokens, a window has %d",
        tokens.size(), sequence_ + 1);
  const Window window =
      order_ == TokenOrder::kSequential ? SequentialWindow(sample) : ShuffledWindow(sample);
  const TokenFile& file = files_[window.file];
  const int64_t begin = window.index * sequence_;
  const int64_t bad = FindBadToken(file, begin, begin + sequence_ + 1);
  if (bad >= 0) return absl::DataLossError(DescribeBadToken(file, bad));
  if (bytes_per_token_ == 2) {
    Widen<uint16_t>(file.mapping.bytes().data(), begin, tokens);
  } else {
    Widen<uint32_t>(file.mapping.bytes().data(), begin, tokens);
  }
  return absl::OkStatus();
}

TokenDataset::Window TokenDataset::SequentialWindow(int64_t sample) const {
  int64_t index = sample % windows();
  size_t file = 0;
  while (index >= files_[file].windows) index -= files_[file++].windows;
  return {file, index};
}

// Sample i of those that reach a file is the file's own when the count of its samples grows at i;
// otherwise it is passed on to the files after it, where it is number i - (count so far).
TokenDataset::Window TokenDataset::ShuffledWindow(int64_t sample) const {
  size_t file = 0;
  int64_t i = sample;
  for (; file + 1 < files_.size(); ++file) {
    const int64_t before = SamplesOf(i, files_[file].share);
    if (SamplesOf(i + 1, files_[file].share) > before) {
      i = before;
      break;
    }
    i -= before;
  }
  const int64_t windows = files_[file].windows;
  const uint64_t epoch = static_cast<uint64_t>(i / windows);
  const uint64_t key = MixBits(MixBits(MixBits(seed_) ^ file) ^ epoch);
  return {file, Permutation(windows, key)(i % windows)};
}

int64_t TokenDataset::FindBadToken(const TokenFile& file, int64_t begin, int64_t end) const {
  return bytes_per_token_ == 2
             ? FindAtLeast<uint16_t>(file.mapping.bytes().data(), begin, end, vocabulary_)
             : FindAtLeast<uint32_t>(file.mapping.bytes().data(), begin, end, vocabulary_);
}

std::string TokenDataset::DescribeBadToken(const TokenFile& file, int64_t index) const {
  const int64_t offset = index * bytes_per_token_;
  uint32_t value = 0;
  std::memcpy(&value, file.mapping.bytes().data() + offset, static_cast<size_t>(bytes_per_token_));
  return absl::StrFormat(
      "%s \"%s\": token %d (byte offset %d) is %d, but model.vocabulary is %d; raise the "
      "vocabulary or prepare the file again (is data.format right?)",
      name_, file.mapping.path(), index, offset, value, vocabulary_);
}

}  // namespace twinstream
