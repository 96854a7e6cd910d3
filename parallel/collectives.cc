#include "parallel/collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/tensor.h"

namespace twinstream {
namespace {

std::string BroadcastTextFrom(Communicator& world, std::string text, int root) {
  Check(text.size() < INT32_MAX - sizeof(int32_t), "a text of %d bytes", text.size());
  int32_t size = static_cast<int32_t>(text.size());
  world.Broadcast(Tensor(reinterpret_cast<std::byte*>(&size), DType::kI32, {}), root);
  // There is no dtype for bytes: whole words, the last one padded.
  const int64_t words = (size + 3) / 4;
  text.resize(static_cast<size_t>(words) * 4);
  world.Broadcast(Tensor(reinterpret_cast<std::byte*>(text.data()), DType::kI32, {words}), root);
  text.resize(static_cast<size_t>(size));
  return text;
}

int32_t Largest(Communicator& world, int32_t value) {
  world.AllReduce(Tensor(reinterpret_cast<std::byte*>(&value), DType::kI32, {}), Reduction::kMax);
  return value;
}

// All ranks' words, in rank order: counts[r] of them from rank r.
std::vector<int32_t> GatherWords(Communicator& world, absl::Span<const int32_t> own,
                                 absl::Span<const int64_t> counts) {
  const auto mine = counts.begin() + world.rank();
  const int64_t before = std::accumulate(counts.begin(), mine, int64_t{0});
  const int64_t total = std::accumulate(mine, counts.end(), before);
  std::vector<int32_t> all(static_cast<size_t>(total));
  std::copy(own.begin(), own.end(), all.begin() + before);
  world.AllGather(Tensor(reinterpret_cast<std::byte*>(all.data()), DType::kI32, {total}), counts);
  return all;
}

}  // namespace

std::string BroadcastText(Communicator& world, std::string text) {
  return BroadcastTextFrom(world, std::move(text), 0);
}

std::vector<std::string> GatherTexts(Communicator& world, const std::string& text) {
  Check(text.size() <= INT32_MAX, "a text of %d bytes", text.size());
  const std::vector<int64_t> ones(static_cast<size_t>(world.size()), 1);
  const std::vector<int32_t> sizes = GatherWords(world, {static_cast<int32_t>(text.size())}, ones);
  std::vector<int64_t> counts;
  for (int32_t size : sizes) counts.push_back((int64_t{size} + 3) / 4);
  std::vector<int32_t> packed((text.size() + 3) / 4);
  if (!text.empty()) std::memcpy(packed.data(), text.data(), text.size());
  const std::vector<int32_t> all = GatherWords(world, packed, counts);
  std::vector<std::string> texts;
  const int32_t* next = all.data();
  for (size_t r = 0; r < sizes.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(next), static_cast<size_t>(sizes[r]));
    next += counts[r];
  }
  return texts;
}

void AllReduceValues(Communicator& world, absl::Span<double> values, Reduction reduction) {
  world.AllReduce(Tensor(reinterpret_cast<std::byte*>(values.data()), DType::kF64,
                         {static_cast<int64_t>(values.size())}),
                  reduction);
}

double AllReduceValue(Communicator& world, double value, Reduction reduction) {
  AllReduceValues(world, absl::MakeSpan(&value, 1), reduction);
  return value;
}

bool AnyRank(Communicator& world, bool here) { return Largest(world, here ? 1 : 0) != 0; }

absl::Status AgreeOnStatus(Communicator& world, const absl::Status& status) {
  // The lowest failing rank is the largest of size - rank over the failing ones.
  const int32_t size = world.size();
  const int32_t lowest = size - Largest(world, status.ok() ? 0 : size - world.rank());
  if (lowest == size) return absl::OkStatus();
  int32_t code = static_cast<int32_t>(status.code());
  world.Broadcast(Tensor(reinterpret_cast<std::byte*>(&code), DType::kI32, {}), lowest);
  const std::string message = BroadcastTextFrom(
      world, std::string(status.message().data(), status.message().size()), lowest);
  const absl::Status alike(static_cast<absl::StatusCode>(code), message);
  if (Largest(world, status == alike ? 0 : 1) == 0) return status;
  return absl::Status(alike.code(), absl::StrCat("rank ", lowest, ": ", message));
}

}  // namespace twinstream
