#include "launch/command_inspect.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/maximum.h"
#include "core/safetensors.h"
#include "google/protobuf/util/message_differencer.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/checkpoint_reader.h"

namespace twinstream {
namespace {

absl::StatusOr<CheckpointReader> OpenReader(const std::string& path) {
  const absl::StatusOr<std::string> step_directory = FindCheckpoint(path);
  if (!step_directory.ok()) return step_directory.status();
  return CheckpointReader::Open(*step_directory);
}

std::string ModelText(const ModelSpec& model) {
  const std::string experts = absl::StrFormat(", experts %d of which a token takes %d",
                                              model.moe().experts(), model.moe().top_k());
  return absl::StrFormat(
      "%s %s, layers %d, hidden %d, heads %d, kv_heads %d, head_dim %d, ffn %d, vocabulary %d, "
      "sequence %d%s",
      ModelSpec::Family_Name(model.family()), ModelSpec::Residual_Name(model.residual()),
      model.layers(), model.hidden(), model.heads(), model.kv_heads(), model.head_dim(),
      model.ffn(), model.vocabulary(), model.sequence(), model.has_moe() ? experts : "");
}

void PrintSummary(const CheckpointReader& reader) {
  const Manifest& manifest = reader.manifest();
  int64_t parameters = 0;
  for (const StoredTensor& tensor : manifest.tensor()) {
    if (IsModelTensor(tensor.name())) parameters += ShapeOf(tensor).elements();
  }
  int64_t bytes = 0;
  for (const ShardFile& file : manifest.file()) bytes += file.bytes();
  absl::PrintF("checkpoint  %s\n", reader.step_directory());
  absl::PrintF("step        %d\n", manifest.step());
  absl::PrintF("trained on  %d tokens; next sample %d\n", manifest.tokens(),
               manifest.next_sample());
  absl::PrintF("job         %s\n", manifest.job().name());
  absl::PrintF("layout      %s\n", manifest.layout());
  absl::PrintF("written by  %s\n", manifest.program());
  absl::PrintF("model       %s\n", ModelText(manifest.job().model()));
  absl::PrintF("parameters  %d\n", parameters);
  absl::PrintF("bytes       %d in %d files\n", bytes, manifest.file_size());
}

size_t LongestName(const Manifest& manifest) {
  size_t longest = 0;
  for (const StoredTensor& tensor : manifest.tensor()) {
    longest = std::max(longest, tensor.name().size());
  }
  return longest;
}

std::string BoxesText(const StoredTensor& tensor) {
  constexpr int kShown = 6;
  std::vector<std::string> boxes;
  for (int k = 0; k < std::min(kShown, tensor.box_size()); ++k) {
    boxes.push_back(BoxOf(tensor.box(k)).ToString());
  }
  if (tensor.box_size() > kShown) {
    boxes.push_back(absl::StrCat("and ", tensor.box_size() - kShown, " more"));
  }
  return absl::StrJoin(boxes, " ");
}

// One tensor of one checkpoint as floats.
absl::StatusOr<std::vector<float>> ReadFloats(CheckpointReader& reader,
                                              const StoredTensor& tensor) {
  const Shape shape = ShapeOf(tensor);
  std::vector<std::byte> bytes(
      static_cast<size_t>(shape.elements() * SizeOf(*DTypeNamed(tensor.dtype()))));
  if (absl::Status s = reader.Read(tensor, Box::Whole(shape), absl::MakeSpan(bytes)); !s.ok()) {
    return s;
  }
  return ToFloats(tensor.dtype(), bytes);
}

// Largest |a - b|; NaN if an element is NaN on one side only.
double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    largest = Maximum(largest, std::abs(double{a[i]} - double{b[i]}));
  }
  return largest;
}

// What is wrong with shards as a whole, by their index in the manifest.
std::map<int, std::string> FaultsOfFiles(const CheckpointReader& reader) {
  std::map<int, std::string> faults;
  for (int k = 0; k < reader.manifest().file_size(); ++k) {
    const absl::Status status =
        OpenShard(reader.step_directory(), reader.manifest().file(k)).status();
    if (!status.ok()) faults[k] = std::string(status.message());
  }
  return faults;
}

// Whether shard `file`, which is there, calls its tensors what the manifest says: this program
// reads the manifest alone, other readers of safetensors the shard's own header.
absl::Status CheckHeader(const CheckpointReader& reader, int file) {
  const Manifest& manifest = reader.manifest();
  const std::string path = absl::StrCat(reader.step_directory(), "/", manifest.file(file).name());
  const absl::StatusOr<SafetensorsFile> shard = SafetensorsFile::Open(path);
  if (!shard.ok()) return shard.status();
  std::map<int64_t, std::string> expected;  // by place in the file: neither has gaps
  for (const StoredTensor& tensor : manifest.tensor()) {
    for (const StoredBox& box : tensor.box()) {
      if (box.file() != file || BoxOf(box).elements() == 0) continue;
      expected[box.offset()] =
          absl::StrCat(box.entry(), " ", tensor.dtype(), " ", BoxOf(box).extent.ToString());
    }
  }
  auto next = expected.begin();
  for (const StoredArray& array : shard->arrays()) {
    if (array.bytes.empty()) continue;
    const std::string found =
        absl::StrCat(array.name, " ", array.dtype, " ", array.shape.ToString());
    if (next == expected.end() || found != next->second) {
      return absl::DataLossError(absl::StrCat(path, ": its header has ", found, " in the place of ",
                                              next == expected.end() ? "nothing" : next->second));
    }
    ++next;
  }
  if (next == expected.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": its header lacks ", next->second));
}

int TensorsIn(int file, const Manifest& manifest) {
  return static_cast<int>(
      std::count_if(manifest.tensor().begin(), manifest.tensor().end(), [&](const auto& tensor) {
        return std::any_of(tensor.box().begin(), tensor.box().end(),
                           [&](const StoredBox& box) { return box.file() == file; });
      }));
}

absl::Status InspectOne(const std::string& path) {
  absl::StatusOr<CheckpointReader> reader = OpenReader(path);
  if (!reader.ok()) return reader.status();
  const Manifest& manifest = reader->manifest();
  PrintSummary(*reader);
  const int width = static_cast<int>(LongestName(manifest));
  // A lost file is named once; digests are compared where there is something to read. Shards that
  // hold no box count too.
  std::vector<std::string> faults;
  const std::map<int, std::string> lost = FaultsOfFiles(*reader);
  for (const auto& [file, fault] : lost) {
    faults.push_back(absl::StrCat(fault, "; tensors in it: ", TensorsIn(file, manifest)));
  }
  for (int file = 0; file < manifest.file_size(); ++file) {
    if (lost.count(file) > 0) continue;
    const absl::Status status = CheckHeader(*reader, file);
    if (!status.ok()) faults.push_back(std::string(status.message()));
  }
  for (const StoredTensor& tensor : manifest.tensor()) {
    bool whole = true;
    for (const StoredBox& box : tensor.box()) {
      const bool is_lost = lost.count(box.file()) > 0;
      const absl::Status status = is_lost ? absl::OkStatus() : reader->Verify(tensor, box);
      if (!status.ok()) faults.push_back(std::string(status.message()));
      whole = whole && !is_lost && status.ok();
    }
    absl::PrintF("%-*s  %s %s  %s%s\n", width, tensor.name(), tensor.dtype(),
                 ShapeOf(tensor).ToString(), BoxesText(tensor), whole ? "" : "  DAMAGED");
  }
  if (faults.empty()) {
    absl::PrintF(
        "whole       yes: every file is there, with its header, and every digest matches\n");
    return absl::OkStatus();
  }
  absl::PrintF("whole       NO\n");
  return absl::DataLossError(
      absl::StrCat(reader->step_directory(), " is not whole:\n", absl::StrJoin(faults, "\n")));
}

void PrintJobDifferences(const JobSpec& first, const JobSpec& second) {
  std::string differences;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(first, second)) differences = "the jobs are the same\n";
  absl::PrintF("%s", differences);
}

// Tensors' names in either checkpoint, with what each has of that name.
using Pair = std::pair<const StoredTensor*, const StoredTensor*>;
std::map<std::string, Pair> PairTensors(const Manifest& first, const Manifest& second) {
  std::map<std::string, Pair> pairs;
  for (const StoredTensor& tensor : first.tensor()) pairs[tensor.name()].first = &tensor;
  for (const StoredTensor& tensor : second.tensor()) pairs[tensor.name()].second = &tensor;
  return pairs;
}

absl::Status CompareTwo(const std::string& first_path, const std::string& second_path) {
  absl::StatusOr<CheckpointReader> first = OpenReader(first_path);
  if (!first.ok()) return first.status();
  absl::StatusOr<CheckpointReader> second = OpenReader(second_path);
  if (!second.ok()) return second.status();
  for (const CheckpointReader* reader : {&*first, &*second}) PrintSummary(*reader);
  PrintJobDifferences(first->manifest().job(), second->manifest().job());

  const auto pairs = PairTensors(first->manifest(), second->manifest());
  const int width =
      static_cast<int>(std::max(LongestName(first->manifest()), LongestName(second->manifest())));
  int64_t identical = 0;
  double largest = 0;
  for (const auto& [name, pair] : pairs) {
    const auto& [a, b] = pair;
    if (a == nullptr || b == nullptr) {
      absl::PrintF("%-*s  only in the %s\n", width, name, a != nullptr ? "first" : "second");
      continue;
    }
    if (ShapeOf(*a) != ShapeOf(*b)) {
      absl::PrintF("%-*s  %s in the first, %s in the second\n", width, name, ShapeOf(*a).ToString(),
                   ShapeOf(*b).ToString());
      continue;
    }
    const absl::StatusOr<std::vector<float>> x = ReadFloats(*first, *a);
    if (!x.ok()) return x.status();
    const absl::StatusOr<std::vector<float>> y = ReadFloats(*second, *b);
    if (!y.ok()) return y.status();
    if (std::memcmp(x->data(), y->data(), x->size() * sizeof(float)) == 0) {
      ++identical;
      absl::PrintF("%-*s  identical\n", width, name);
      continue;
    }
    const double difference = LargestDifference(*x, *y);
    largest = Maximum(largest, difference);
    absl::PrintF("%-*s  differs by at most %g\n", width, name, difference);
  }
  absl::PrintF("%d of %d tensors identical; largest difference %g\n", identical, pairs.size(),
               largest);
  return absl::OkStatus();
}

}  // namespace

absl::Status CommandInspect(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? InspectOne(paths[0]) : CompareTwo(paths[0], paths[1]);
}

}  // namespace twinstream
