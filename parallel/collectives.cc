#include "parallel/collectives.h"

#include <algorithm>
#include <cstdint>
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

}  // namespace

std::string BroadcastText(Communicator& world, std::string text) {
  return BroadcastTextFrom(world, std::move(text), 0);
}

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
