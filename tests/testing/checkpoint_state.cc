#include "tests/testing/checkpoint_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/host_communicator.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

constexpr int64_t kTensors = 6;

// Calls visit(element of the piece, its number for this version).
template <typename Visit>
void ForEachElement(const Piece& piece, int64_t tensor, int64_t version, Visit visit) {
  const Box whole = Box::Whole(piece.global);
  std::vector<float> numbers(static_cast<size_t>(whole.elements()));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = static_cast<float>(version * 10000 + static_cast<int64_t>(i) * kTensors + tensor);
  }
  std::vector<float> expected(static_cast<size_t>(piece.box.elements()));
  CopyBox(piece.box, whole, reinterpret_cast<const std::byte*>(numbers.data()), piece.box,
          reinterpret_cast<std::byte*>(expected.data()), sizeof(float));
  float* values = piece.data.As<float>();
  for (size_t i = 0; i < expected.size(); ++i) visit(values[i], expected[i]);
}

int64_t TensorOf(const Piece& piece) {
  int64_t sum = 0;
  for (char letter : piece.name) sum += letter;
  return sum % kTensors;
}

Communicator& World(Transport& transport, std::unique_ptr<Communicator>& world) {
  world =
      std::make_unique<HostCommunicator>(transport, GridGroup::kWorld, AllRanks(transport.size()));
  return *world;
}

}  // namespace

CheckpointState::CheckpointState(int rank, int ranks, Holding holding) {
  const Shape embedding{67, 4}, up{8, 6}, norm{5}, qkv{12, 3};
  const Range rows = SplitEvenly(67, ranks, rank);
  const Range reversed = SplitEvenly(67, ranks, ranks - 1 - rank);
  Add("embedding.weight", embedding, Box::Range(embedding, 0, rows.begin, rows.end));
  Add("adam_m.embedding.weight", embedding, Box::Range(embedding, 0, reversed.begin, reversed.end));
  const Range columns = SplitEvenly(6, ranks, rank);
  Add("up.weight", up, Box::Range(up, 1, columns.begin, columns.end));
  for (int64_t part = 0; part < 3; ++part) {  // query, key and value rows of each rank
    const Range heads = SplitEvenly(4, ranks, rank);
    Add("qkv.weight", qkv, Box::Range(qkv, 0, 4 * part + heads.begin, 4 * part + heads.end));
  }
  const Range few = SplitEvenly(2, ranks, rank);  // nothing on ranks 2 and up
  Add("few.weight", {2}, Box::Range({2}, 0, few.begin, few.end));
  if (holding == Holding::kNeeded || rank == ranks - 1) {
    Add("norm.weight", norm, Box::Whole(norm));
    Add("scale", {}, Box::Whole({}));
  }
}

void CheckpointState::Add(const std::string& name, const Shape& global, const Box& box) {
  memory_.push_back(std::make_unique<float[]>(static_cast<size_t>(box.elements())));
  std::byte* data = reinterpret_cast<std::byte*>(memory_.back().get());
  pieces_.push_back({name, global, box, Tensor(data, DType::kF32, box.extent)});
}

void CheckpointState::Fill(int64_t version) {
  for (const Piece& piece : pieces_) {
    ForEachElement(piece, TensorOf(piece), version,
                   [](float& value, float expected) { value = expected; });
  }
}

bool CheckpointState::Holds(int64_t version) const {
  bool holds = true;
  for (const Piece& piece : pieces_) {
    ForEachElement(piece, TensorOf(piece), version,
                   [&](float value, float expected) { holds = holds && value == expected; });
  }
  return holds;
}

SaveRequest RequestFor(int64_t step, int ranks) {
  SaveRequest request;
  request.step = step;
  request.next_sample = 4 * step;
  request.tokens = 64 * step;
  request.job.set_name("small");
  request.job.mutable_model()->set_layers(2);
  request.layout = absl::StrCat("data ", ranks);
  request.program = "test";
  return request;
}

absl::Status SaveState(const std::string& directory, int64_t step, int ranks, int64_t version) {
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](Transport& transport) {
    std::unique_ptr<Communicator> world;
    CheckpointState state(transport.rank(), ranks, Holding::kOwned);
    state.Fill(version);
    statuses[static_cast<size_t>(transport.rank())] = SaveCheckpoint(
        directory, RequestFor(step, ranks), state.pieces(), *device, World(transport, world));
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

absl::Status LoadState(const std::string& step_directory, int ranks, int64_t version) {
  const std::unique_ptr<Device> device = *MakeDevice("cpu");
  for (int rank = 0; rank < ranks; ++rank) {
    CheckpointState state(rank, ranks, Holding::kNeeded);
    const absl::Status status = LoadCheckpoint(
        step_directory, state.pieces(), [](absl::string_view) { return false; }, *device);
    if (!status.ok()) return status;
    if (!state.Holds(version)) return absl::DataLossError("wrong elements without an error");
  }
  return absl::OkStatus();
}

}  // namespace twinstream::testing
