// TokenDataset: raw little-endian token files, mapped into memory, and the tokens of any training
// sample. What sample g is depends on g, the files and the seed alone: there is no iterator, no
// index file and no state, so a run resumes from one integer on any number of ranks.
//
// A file of n tokens has floor((n - 1) / T) windows; window k holds tokens kT to kT + T. None
// crosses a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/file.h"

namespace twinstream {

enum class TokenOrder {
  // Samples are shared out over the files in exact proportion to their weights. The k-th sample of
  // a file of n windows is window P(k mod n), P a permutation of its own for every file and epoch
  // k / n: every window once per epoch.
  kShuffled,
  // Files in order, windows in order, after the last the first again. Weights are ignored.
  kSequential,
};

struct TokenFileOptions {
  std::string path;
  double weight = 1;  // > 0: this file's share of the samples, relative to the others
};

struct TokenDatasetOptions {
  std::string name;  // for messages: the job's field, "data.train"
  std::vector<TokenFileOptions> files;
  int bytes_per_token = 2;  // 2 or 4
  int64_t sequence = 0;     // T
  int64_t vocabulary = 0;   // tokens are below it
  TokenOrder order = TokenOrder::kShuffled;
  uint64_t seed = 0;
};

class TokenDataset {
 public:
  // InvalidArgument with one line per mistake: missing, empty, odd-sized or too short files (with
  // the numbers and the remedy), weights that are not positive. Reads no tokens.
  static absl::StatusOr<TokenDataset> Open(const TokenDatasetOptions& options);

  TokenDataset(TokenDataset&& other) = default;
  TokenDataset& operator=(TokenDataset&& other) = default;

  int64_t tokens() const;   // in all files
  int64_t windows() const;  // in all files: samples of one sequential epoch
  int64_t sequence() const { return sequence_; }
  TokenOrder order() const { return order_; }
  // Passes over the data that `samples` samples are: 1.5 for one and a half times all windows.
  double Epochs(int64_t samples) const;

  // This part's share (0 <= part < parts) of the search for tokens outside the vocabulary: files up
  // to 1 GiB whole, of larger ones every 64th chunk. InvalidArgument names file, token and value.
  absl::Status CheckTokens(int part, int parts) const;

  // The T + 1 tokens of global sample `sample` (from 0, without end). DataLoss naming file and
  // token when one is outside the vocabulary. Safe from several threads.
  absl::Status Read(int64_t sample, absl::Span<int32_t> tokens) const;

 private:
  struct TokenFile {
    MappedFile mapping;
    int64_t tokens;
    int64_t windows;
    uint64_t share;  // of the samples that the files before it leave, in 1 / 2^32
  };
  struct Window {
    size_t file;
    int64_t index;
  };

  explicit TokenDataset(const TokenDatasetOptions& options);
  absl::StatusOr<TokenFile> OpenFile(const TokenFileOptions& options) const;
  void ShareOutSamples(absl::Span<const TokenFileOptions> options);
  Window SequentialWindow(int64_t sample) const;
  Window ShuffledWindow(int64_t sample) const;
  // Index of the first token outside the vocabulary in [begin, end), or -1.
  int64_t FindBadToken(const TokenFile& file, int64_t begin, int64_t end) const;
  std::string DescribeBadToken(const TokenFile& file, int64_t index) const;

  std::string name_;
  int bytes_per_token_;
  int64_t sequence_;
  int64_t vocabulary_;
  TokenOrder order_;
  uint64_t seed_;
  std::vector<TokenFile> files_;
};

}  // namespace twinstream
