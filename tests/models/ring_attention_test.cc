#include "models/ring_attention.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cpu/device.h"
#include "gtest/gtest.h"
#include "parallel/process_grid.h"
#include "tests/testing/near.h"
#include "tests/testing/reference_attention.h"
#include "tests/testing/run_ranks.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

struct Ring {
  int ranks;
  AttentionShape shape;  // of the whole sequences
};

// A tensor [outer, T, inner] cut to a shard's tokens, and back.
struct Cut {
  const SequenceShard& shard;
  int64_t outer, inner;

  size_t At(int64_t o, int64_t position, int64_t i) const {
    return static_cast<size_t>((o * shard.sequence + position) * inner + i);
  }
  template <class F>
  void ForEach(F f) const {  // f(element of the shard, element of the whole)
    size_t local = 0;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t t = 0; t < shard.tokens(); ++t)
        for (int64_t i = 0; i < inner; ++i) f(local++, At(o, shard.Position(t), i));
  }
  std::vector<float> Of(const std::vector<float>& whole) const {
    std::vector<float> part(static_cast<size_t>(outer * shard.tokens() * inner));
    ForEach([&](size_t local, size_t global) { part[local] = whole[global]; });
    return part;
  }
  void Into(const std::vector<float>& part, std::vector<float>& whole) const {
    ForEach([&](size_t local, size_t global) { whole[global] = part[local]; });
  }
};

// Whole tensors; the results are put together by all ranks.
struct Sequences {
  Sequences(const AttentionShape& shape, DType dtype_in) : dtype(dtype_in) {
    const int64_t query = shape.rows() * shape.heads * shape.head_dim;
    const int64_t key = shape.rows() * shape.kv_heads * shape.head_dim;
    q = RandomFloats(query, 1, dtype);
    k = RandomFloats(key, 2, dtype);
    v = RandomFloats(key, 3, dtype);
    dout = RandomFloats(query, 4, dtype);
    out = dq = std::vector<float>(q.size(), NAN);
    dk = dv = std::vector<float>(k.size(), NAN);
    lse.resize(static_cast<size_t>(shape.rows() * shape.heads), NAN);
  }
  DType dtype;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
};

// Forward and backward of one rank, twice, as micro-batches follow each other. In bf16 on AVX2,
// where attention rounds results alone: on AVX-512 also what it multiplies.
void RunRank(const AttentionShape& whole, Communicator& context_ranks, Sequences& all,
             std::mutex& mutex) {
  const std::unique_ptr<Device> device =
      all.dtype == DType::kBF16 ? avx2::MakeCpuDevice(/*threads=*/0) : MakeDevice("cpu").value();
  const TensorRegion region = TensorRegion::Alone();
  const ExpertRegion experts = ExpertRegion::Alone();
  ParameterStore parameters;
  ModelContext context = {.model = {},
                          .batch = whole.batch,
                          .device = *device,
                          .ops = device->ops(),
                          .region = region,
                          .experts = experts,
                          .parameters = parameters,
                          .context_ranks = &context_ranks,
                          .activation = all.dtype};
  context.model.set_sequence(whole.sequence);
  const SequenceShard shard = context.shard();
  AttentionShape shape = whole;
  shape.sequence = shard.tokens();
  const RingAttention attention(context, shape);
  Scratch scratch(*device, attention.ScratchBytes());
  context.scratch = &scratch;

  const int64_t B = shape.batch, H = shape.heads, K = shape.kv_heads, D = shape.head_dim;
  const Cut query = {shard, B * H, D}, key = {shard, B * K, D}, row = {shard, B, H * D},
            scalar = {shard, B * H, 1};
  std::vector<float> q = query.Of(all.q), kv = key.Of(all.k), dout = row.Of(all.dout);
  const std::vector<float> v = key.Of(all.v);
  kv.insert(kv.end(), v.begin(), v.end());
  std::vector<float> out(q.size(), NAN), dq(q.size(), NAN), dkv(kv.size(), NAN),
      lse(static_cast<size_t>(shape.rows() * H), NAN);
  const Shape rows = {shape.rows(), H * D}, kv_shape = attention.KeysAndValues().shape;
  const Shape heads = {B, H, shape.sequence, D}, lse_shape = {B, H, shape.sequence};
  const auto lend = [&](std::vector<float>& values, const Shape& to) {
    return Lent(values, to, all.dtype);
  };
  {
    const Lent lent_out = lend(out, rows), lent_q = lend(q, heads), lent_kv = lend(kv, kv_shape),
               lent_dout = lend(dout, rows), lent_dq = lend(dq, heads),
               lent_dkv = lend(dkv, kv_shape);
    const RingAttentionTensors tensors = {
        .out = lent_out, .lse = View(lse, lse_shape), .q = lent_q, .kv = lent_kv};
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) attention.Forward(tensors);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      attention.Backward(tensors, lent_dq, lent_dkv, lent_dout);
    }
  }
  EXPECT_EQ(scratch.mark(), 0);

  const std::lock_guard<std::mutex> lock(mutex);
  const auto half = static_cast<int64_t>(dkv.size() / 2);
  row.Into(out, all.out);
  scalar.Into(lse, all.lse);
  query.Into(dq, all.dq);
  key.Into({dkv.begin(), dkv.begin() + half}, all.dk);
  key.Into({dkv.begin() + half, dkv.end()}, all.dv);
}

class RingAttentionTest : public ::testing::TestWithParam<Ring> {};

Sequences RunRing(const Ring& ring, DType dtype) {
  Sequences all(ring.shape, dtype);
  std::mutex mutex;
  RunRanks(ring.ranks, [&](Transport& transport) {
    const ProcessGrid grid({.context = transport.size()}, transport);
    RunRank(ring.shape, grid.context(), all, mutex);
  });
  return all;
}

// Largest difference between a bf16 result and `wide`, beyond one rounding of each element.
double BeyondOneRounding(const std::vector<float>& narrow, const std::vector<float>& wide) {
  double largest = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    const double difference = std::abs(double{narrow[i]} - wide[i]);
    largest = std::max(largest, difference - kBFloat16Epsilon * std::abs(double{wide[i]}));
  }
  return largest;
}

// On the same inputs: however many ranks there are, a result is rounded once. (The backward of two
// roundings, that of `out` in the forward and its own: a tensor's size is the gauge there.)
TEST_P(RingAttentionTest, BFloat16RoundsTheSumsOverAllRanksOnce) {
  const auto& [ranks, shape] = GetParam();
  const Sequences narrow = RunRing(GetParam(), DType::kBF16);
  const AttentionInputs inputs = {ToDouble(narrow.q), ToDouble(narrow.k), ToDouble(narrow.v)};
  const std::vector<double> out = ReferenceAttention(shape, inputs).out;
  const double float32 = Float32Tolerance(shape.sequence + shape.head_dim);
  EXPECT_LE(BeyondOneRounding(narrow.out, {out.begin(), out.end()}), float32);
  const AttentionInputs gradients =
      ReferenceAttentionBackward(shape, inputs, ToDouble(narrow.dout));
  const double tolerance = Tolerance(DType::kBF16, shape.sequence + shape.head_dim, 2);
  EXPECT_LE(RelativeError(narrow.dq, gradients.q), tolerance);
  EXPECT_LE(RelativeError(narrow.dk, gradients.k), tolerance);
  EXPECT_LE(RelativeError(narrow.dv, gradients.v), tolerance);
}

TEST_P(RingAttentionTest, EqualsAttentionOverTheWholeSequence) {
  const auto& [ranks, shape] = GetParam();
  const Sequences all = RunRing(GetParam(), DType::kF32);
  const AttentionInputs inputs = {ToDouble(all.q), ToDouble(all.k), ToDouble(all.v)};
  const AttentionOutputs expected = ReferenceAttention(shape, inputs);
  const AttentionInputs gradients = ReferenceAttentionBackward(shape, inputs, ToDouble(all.dout));
  const double tolerance = Float32Tolerance(shape.sequence + shape.head_dim);
  EXPECT_LT(RelativeError(all.out, expected.out), tolerance);
  EXPECT_LT(RelativeError(all.lse, expected.lse), tolerance);
  EXPECT_LT(RelativeError(all.dq, gradients.q), tolerance);
  EXPECT_LT(RelativeError(all.dk, gradients.k), tolerance);
  EXPECT_LT(RelativeError(all.dv, gradients.v), tolerance);
}

// Sizes of messages below and above every eager limit; sends of threads are synchronous.
INSTANTIATE_TEST_SUITE_P(
    Rings, RingAttentionTest,
    ::testing::Values(
        Ring{1, {.batch = 2, .sequence = 9, .heads = 2, .kv_heads = 1, .head_dim = 8}},
        Ring{2, {.batch = 1, .sequence = 4, .heads = 1, .kv_heads = 1, .head_dim = 8}},
        Ring{2, {.batch = 2, .sequence = 300, .heads = 6, .kv_heads = 2, .head_dim = 32}},
        Ring{3, {.batch = 2, .sequence = 30, .heads = 4, .kv_heads = 1, .head_dim = 16}},
        Ring{4, {.batch = 2, .sequence = 264, .heads = 4, .kv_heads = 2, .head_dim = 16}},
        Ring{5, {.batch = 1, .sequence = 10, .heads = 2, .kv_heads = 2, .head_dim = 8}},
        Ring{8, {.batch = 3, .sequence = 16, .heads = 4, .kv_heads = 4, .head_dim = 8}}),
    [](const ::testing::TestParamInfo<Ring>& ring) {
      return absl::StrCat(ring.param.ranks, "Ranks", ring.param.shape.sequence, "Tokens");
    });

TEST(RingRectangle, EveryRankComputesTheSameAmountInEveryStep) {
  constexpr int64_t kHalf = 5;
  for (int rank = 0; rank < 6; ++rank) {
    for (int owner = 0; owner < 6; ++owner) {
      if (owner == rank) continue;
      const AttentionRectangle seen = RingRectangle(2 * kHalf, rank, owner);
      EXPECT_EQ((seen.query_end - seen.query_begin) * (seen.key_end - seen.key_begin),
                2 * kHalf * kHalf);
    }
  }
}

}  // namespace
}  // namespace twinstream::testing
