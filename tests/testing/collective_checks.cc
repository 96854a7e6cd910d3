#include "tests/testing/collective_checks.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/collectives.h"
#include "parallel/host_communicator.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

HostCommunicator World(Transport& transport) {
  return HostCommunicator(transport, GridGroup::kWorld, AllRanks(transport.size()));
}

template <typename T>
Tensor View(std::vector<T>& values) {
  return Tensor(reinterpret_cast<std::byte*>(values.data()), DTypeOf<T>::kValue,
                {static_cast<int64_t>(values.size())});
}

template <typename T>
T Converted(double value) {
  return static_cast<T>(value);
}
template <>
BFloat16 Converted(double value) {
  return RoundToBFloat16(static_cast<float>(value));
}

// Element i of rank r: magnitudes far apart, so that another order of summation has other bits.
template <typename T>
std::vector<T> Input(int rank, int64_t elements) {
  std::vector<T> values;
  for (int64_t i = 0; i < elements; ++i) {
    const uint64_t hash =
        (static_cast<uint64_t>(i) * 31 + static_cast<uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15u;
    const double unit = static_cast<double>(hash >> 12) / static_cast<double>(1ull << 52) - 0.5;
    values.push_back(Converted<T>(unit * static_cast<double>(1 << (hash % 20))));
  }
  return values;
}

// The ranks' T, reduced one after another in an accumulator.
template <typename T, typename Accumulator>
std::vector<Accumulator> Reduced(int ranks, int64_t elements, Reduction reduction) {
  const std::vector<T> first = Input<T>(0, elements);
  std::vector<Accumulator> result(first.begin(), first.end());
  for (int r = 1; r < ranks; ++r) {
    const std::vector<T> addends = Input<T>(r, elements);
    for (size_t i = 0; i < result.size(); ++i) {
      const Accumulator addend = addends[i];
      result[i] = reduction == Reduction::kSum ? result[i] + addend : std::max(result[i], addend);
    }
  }
  return result;
}

template <typename T>
std::vector<T> RankOrderReduction(int ranks, int64_t elements, Reduction reduction) {
  return Reduced<T, T>(ranks, elements, reduction);
}
// In float32, rounded once.
template <>
std::vector<BFloat16> RankOrderReduction(int ranks, int64_t elements, Reduction reduction) {
  std::vector<BFloat16> result;
  for (float value : Reduced<BFloat16, float>(ranks, elements, reduction)) {
    result.push_back(RoundToBFloat16(value));
  }
  return result;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
void CheckAllReduce(Communicator& world) {
  // Whole to everybody, and in pieces: fewer bytes than ranks, a few KiB, beyond any eager limit.
  for (int64_t elements : {0, 1, 3, 1000, 9001, 60'001}) {
    for (Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      std::vector<T> values = Input<T>(world.rank(), elements);
      world.AllReduce(View(values), reduction);
      EXPECT_TRUE(SameBits(values, RankOrderReduction<T>(world.size(), elements, reduction)))
          << elements << " elements of " << NameOf(DTypeOf<T>::kValue) << " on rank "
          << world.rank() << " of " << world.size();
    }
  }
}

// Pieces of all sizes: even, uneven, all in one, none at all.
std::vector<std::vector<int64_t>> PieceSizes(int ranks) {
  const size_t R = static_cast<size_t>(ranks);
  std::vector<std::vector<int64_t>> cases(5, std::vector<int64_t>(R));
  for (size_t r = 0; r < R; ++r) {
    cases[0][r] = 5;
    cases[1][r] = static_cast<int64_t>(r) * 7 % 4;
    cases[2][r] = r + 1 == R ? 70'001 : 0;
    cases[3][r] = 0;
    cases[4][r] = r == 0 ? 700'000 / ranks : 100;  // several rounds of scratch for one rank only
  }
  return cases;
}

template <typename T>
void CheckPieces(Communicator& world) {
  for (const std::vector<int64_t>& counts : PieceSizes(world.size())) {
    const int64_t elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const size_t r = static_cast<size_t>(world.rank());
    const int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
    const std::vector<T> sum = RankOrderReduction<T>(world.size(), elements, Reduction::kSum);

    std::vector<T> values = Input<T>(world.rank(), elements);
    world.ReduceScatter(View(values), counts);
    EXPECT_TRUE(
        std::equal(values.begin() + begin, values.begin() + begin + counts[r], sum.begin() + begin))
        << "reduce-scatter, " << elements << " elements, rank " << world.rank();

    // Nothing but the own piece may matter.
    std::fill(values.begin(), values.begin() + begin, Converted<T>(-1));
    std::fill(values.begin() + begin + counts[r], values.end(), Converted<T>(-2));
    world.AllGather(View(values), counts);
    EXPECT_TRUE(SameBits(values, sum))
        << "all-gather, " << elements << " elements, rank " << world.rank();
  }
}

// Float32 addends that travel as bf16: the float32 sum of what has been rounded. Input<BFloat16> is
// Input<float> rounded.
void CheckRoundedPieces(Communicator& world) {
  for (const std::vector<int64_t>& counts : PieceSizes(world.size())) {
    const int64_t elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t begin =
        std::accumulate(counts.begin(), counts.begin() + world.rank(), int64_t{0});
    const int64_t end = begin + counts[static_cast<size_t>(world.rank())];
    const std::vector<float> sum =
        world.size() == 1 ? Input<float>(0, elements)
                          : Reduced<BFloat16, float>(world.size(), elements, Reduction::kSum);
    std::vector<float> values = Input<float>(world.rank(), elements);
    world.ReduceScatterAsBFloat16(View(values), counts);
    EXPECT_TRUE(std::equal(values.begin() + begin, values.begin() + end, sum.begin() + begin))
        << elements << " elements, rank " << world.rank();
  }
}

// Rows of part i that rank `from` sends to rank `to`: none, few, beyond any eager limit.
int64_t PartRows(int from, int to, int i) {
  if (from == 0 && to == 1 && i == 1) return 30'000;
  return (from * 5 + to * 3 + i * 2) % 4;
}

// Rows that say who sent them to whom, in which part.
std::vector<int32_t> PartContents(int from, int to, int i) {
  std::vector<int32_t> rows(static_cast<size_t>(2 * PartRows(from, to, i)));
  std::iota(rows.begin(), rows.end(), 100'000 * ((from * 50 + to) * 3 + i));
  return rows;
}

struct Laid {
  std::vector<int64_t> begins, counts;
  std::vector<int32_t> rows;  // [.., 2]
  RowParts parts() const { return {begins, counts}; }
  Tensor view() {
    return Tensor(reinterpret_cast<std::byte*>(rows.data()), DType::kI32,
                  {static_cast<int64_t>(rows.size() / 2), 2});
  }
};

// All parts of a rank, those with the same i together, in an order unlike the ranks', with a row of
// -1 between any two.
Laid LayOut(int ranks, int parts, const std::function<std::vector<int32_t>(int, int)>& contents) {
  Laid laid;
  const auto place = [&](int r, int i) {
    return static_cast<size_t>(r) * static_cast<size_t>(parts) + static_cast<size_t>(i);
  };
  laid.begins.resize(place(ranks, 0));
  laid.counts.resize(laid.begins.size());
  for (int i = parts - 1; i >= 0; --i) {
    for (int r = 0; r < ranks; ++r) {
      const std::vector<int32_t> part = contents(r, i);
      laid.begins[place(r, i)] = static_cast<int64_t>(laid.rows.size() / 2);
      laid.counts[place(r, i)] = static_cast<int64_t>(part.size() / 2);
      laid.rows.insert(laid.rows.end(), part.begin(), part.end());
      laid.rows.insert(laid.rows.end(), {-1, -1});
    }
  }
  return laid;
}

void CheckAllToAll(Communicator& world) {
  const int self = world.rank();
  for (int parts : {1, 3}) {
    Laid in = LayOut(world.size(), parts, [&](int r, int i) { return PartContents(self, r, i); });
    const Laid expected =
        LayOut(world.size(), parts, [&](int r, int i) { return PartContents(r, self, i); });
    Laid out = expected;
    std::fill(out.rows.begin(), out.rows.end(), -1);
    world.AllToAll(out.view(), out.parts(), in.view(), in.parts());
    EXPECT_TRUE(SameBits(out.rows, expected.rows))
        << "all-to-all, " << parts << " parts, rank " << self << " of " << world.size();
    // And back again.
    std::vector<int32_t> sent = in.rows;
    std::fill(in.rows.begin(), in.rows.end(), -1);
    world.AllToAll(in.view(), in.parts(), out.view(), out.parts());
    EXPECT_TRUE(SameBits(in.rows, sent));
  }
  // In place where there is nobody else; ranks with nothing at all take part.
  std::vector<int32_t> rows = {7, 8};
  const std::vector<int64_t> zeros(static_cast<size_t>(world.size()), 0);
  std::vector<int64_t> own = zeros;
  own[static_cast<size_t>(self)] = self == 0 ? 0 : 2;
  world.AllToAll(View(rows), {zeros, own}, View(rows), {zeros, own});
  EXPECT_EQ(rows, std::vector<int32_t>({7, 8}));
}

void CheckBroadcast(Communicator& world) {
  for (int root = 0; root < world.size(); ++root) {
    for (int64_t elements : {0, 1, 50'000}) {
      std::vector<float> values = Input<float>(world.rank(), elements);
      world.Broadcast(View(values), root);
      EXPECT_TRUE(SameBits(values, Input<float>(root, elements))) << "from rank " << root;
    }
  }
}

// Barriers in a row must not take each other's messages.
void CheckBarrier(Communicator& world) {
  for (int k = 0; k < 20; ++k) world.Barrier();
}

// A ring on two channels at once, both directions, sends first: large messages must not wait for
// their receivers, and channels must not mix.
void CheckMessages(Communicator& world) {
  const int R = world.size(), next = (world.rank() + 1) % R, before = (world.rank() + R - 1) % R;
  std::vector<float> forward = Input<float>(world.rank(), 100'000);
  std::vector<float> backward = Input<float>(world.rank() + 100, 100'000);
  std::vector<float> second = Input<float>(world.rank() + 200, 17);
  const Ticket tickets[] = {world.Send(View(forward), next, Channel::kActivation),
                            world.Send(View(backward), before, Channel::kGradient),
                            world.Send(View(second), next, Channel::kActivation)};
  std::vector<float> received(100'000);
  world.Receive(View(received), next, Channel::kGradient);
  EXPECT_TRUE(SameBits(received, Input<float>(next + 100, 100'000)));
  world.Receive(View(received), before, Channel::kActivation);
  EXPECT_TRUE(SameBits(received, Input<float>(before, 100'000)));
  received.resize(17);
  world.Receive(View(received), before, Channel::kActivation);
  EXPECT_TRUE(SameBits(received, Input<float>(before + 200, 17)));
  for (Ticket ticket : tickets) world.Wait(ticket);
}

// Both sides of a ring started before either is waited for, and the later receive waited for first.
void CheckStartedReceives(Communicator& world) {
  const int R = world.size(), next = (world.rank() + 1) % R, before = (world.rank() + R - 1) % R;
  std::vector<float> keys = Input<float>(world.rank(), 100'000);
  std::vector<float> gradients = Input<float>(world.rank() + 100, 50'000);
  std::vector<float> next_keys(keys.size()), next_gradients(gradients.size());
  const Ticket received[] = {
      world.StartReceive(View(next_keys), before, Channel::kKeyValue),
      world.StartReceive(View(next_gradients), before, Channel::kKeyValueGradient)};
  const Ticket sent[] = {world.Send(View(keys), next, Channel::kKeyValue),
                         world.Send(View(gradients), next, Channel::kKeyValueGradient)};
  world.Wait(received[1]);
  EXPECT_TRUE(SameBits(next_gradients, Input<float>(before + 100, 50'000)));
  world.Wait(received[0]);
  EXPECT_TRUE(SameBits(next_keys, Input<float>(before, 100'000)));
  for (Ticket ticket : sent) world.Wait(ticket);
}

void CheckText(Communicator& world) {
  for (const std::string& text : {std::string(), std::string("a"), std::string(70'001, 'x')}) {
    EXPECT_EQ(BroadcastText(world, world.rank() == 0 ? text : "something else"), text);
  }
}

void CheckStatus(Communicator& world) {
  EXPECT_TRUE(AgreeOnStatus(world, absl::OkStatus()).ok());
  EXPECT_EQ(AgreeOnStatus(world, absl::NotFoundError("no file")), absl::NotFoundError("no file"));
  const int last = world.size() - 1;
  if (last == 0) return;
  const absl::Status mine =
      world.rank() == last ? absl::DataLossError("bad shard") : absl::OkStatus();
  EXPECT_EQ(AgreeOnStatus(world, mine),
            absl::DataLossError(absl::StrCat("rank ", last, ": bad shard")));
  const absl::Status own = absl::InternalError(absl::StrCat("disk ", world.rank()));
  EXPECT_EQ(AgreeOnStatus(world, own), absl::InternalError("rank 0: disk 0"));
}

// Halves of the world work at the same time, each within itself, and then all together.
void CheckGroups(Transport& transport) {
  const int half = (transport.size() + 1) / 2;
  std::vector<int> ranks;
  for (int r = 0; r < transport.size(); ++r) {
    if ((r < half) == (transport.rank() < half)) ranks.push_back(r);
  }
  HostCommunicator group(transport, GridGroup::kData, ranks);
  HostCommunicator world = World(transport);
  std::vector<int32_t> in_group = {1}, in_world = {1};
  for (int k = 0; k < 3; ++k) {
    group.AllReduce(View(in_group), Reduction::kSum);
    world.AllReduce(View(in_world), Reduction::kSum);
  }
  const auto cube = [](int n) { return n * n * n; };
  EXPECT_EQ(in_group[0], cube(static_cast<int>(ranks.size())));
  EXPECT_EQ(in_world[0], cube(transport.size()));
}

}  // namespace

void CheckTensors(Communicator& world) {
  CheckAllReduce<float>(world);
  CheckAllReduce<double>(world);
  CheckAllReduce<int32_t>(world);
  CheckAllReduce<BFloat16>(world);
  CheckPieces<float>(world);
  CheckPieces<int32_t>(world);
  CheckPieces<BFloat16>(world);
  CheckRoundedPieces(world);
  CheckAllToAll(world);
  CheckBroadcast(world);
  CheckBarrier(world);
  CheckMessages(world);
  CheckStartedReceives(world);
}

void CheckCollectives(Transport& transport) {
  HostCommunicator world = World(transport);
  CheckTensors(world);
  CheckText(world);
  CheckStatus(world);
  CheckGroups(transport);
}

// Collectives of everybody, and messages in both directions round a ring.
GroupUse AllWorkOf(int ranks) {
  GroupUse use = {.work = GroupWork::kRoundedSums};
  for (int r = 0; r < ranks; ++r) {
    use.routes.push_back({Channel::kActivation, r, (r + 1) % ranks});
    use.routes.push_back({Channel::kGradient, r, (r + ranks - 1) % ranks});
    use.routes.push_back({Channel::kKeyValue, r, (r + 1) % ranks});
    use.routes.push_back({Channel::kKeyValueGradient, r, (r + 1) % ranks});
  }
  return use;
}

}  // namespace twinstream::testing
