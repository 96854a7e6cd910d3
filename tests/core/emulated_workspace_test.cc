// What core/cuda/workspace.h says: operations do with as much as it says, and no job that the rules
// let through needs more than there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/workspace.h"
#include "gpu/emulator.h"
#include "proto/job_rules.h"
#include "proto/job_spec.h"
#include "tests/devices/uploaded_ops.h"
#include "tests/testing/near.h"
#include "tests/testing/product_checks.h"
#include "tests/testing/residual_run.h"
#include "tests/testing/vectors.h"

namespace twinstream::testing {
namespace {

// ---- Operations, each with all that it writes as its result.

std::vector<float> EmbeddingBackward(const Ops& ops) {
  constexpr int64_t kTokens = 600, kRows = 700, kColumns = 5;
  std::vector<int32_t> tokens(kTokens);
  for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<int32_t>(n * 7919 % kRows);
  std::vector<float> dtable(kRows * kColumns), dout = RandomFloats(kTokens * kColumns, 1);
  ops.EmbeddingBackward(View(dtable, {kRows, kColumns}), View(tokens, {kTokens}),
                        View(dout, {kTokens, kColumns}), 0);
  return dtable;
}

std::vector<float> RouteTokens(const Ops& ops) {
  constexpr int64_t N = 100, E = 5, k = 2;
  std::vector<float> probabilities = RandomFloats(N * E, 2), lse(N), weights(N * k);
  std::vector<int32_t> experts(N * k), rows(N * k), choices(N * k), counts(E);
  std::vector<double> statistics(2 * E + 1);
  ops.RouteTokens({.probabilities = View(probabilities, {N, E}),
                   .lse = View(lse, {N}),
                   .experts = View(experts, {N, k}),
                   .weights = View(weights, {N, k}),
                   .rows = View(rows, {N, k}),
                   .choices = View(choices, {N * k}),
                   .counts = View(counts, {E}),
                   .statistics = View(statistics, {2 * E + 1})});
  std::vector<float> written(statistics.begin(), statistics.end());
  written.insert(written.end(), rows.begin(), rows.end());
  return written;
}

std::vector<float> QkvBackward(const Ops& ops) {
  const AttentionShape shape = {
      .batch = 1, .sequence = 12, .heads = 2, .kv_heads = 1, .head_dim = 8};
  const int64_t T = shape.sequence, D = shape.head_dim;
  std::vector<float> qkv = RandomFloats(T * 4 * D, 3), q = RandomFloats(2 * T * D, 4),
                     k = RandomFloats(T * D, 5), v = RandomFloats(T * D, 6),
                     rope = RandomFloats(T * D, 7), norm = RandomFloats(D, 8),
                     scales = RandomFloats(T * 4, 9), dqkv(qkv.size());
  std::vector<float> dq_norm(norm.size()), dk_norm(norm.size()), dv_norm(norm.size());
  ops.QkvBackward(shape,
                  {.qkv = View(qkv, {T, 4 * D}),
                   .q = View(q, {1, 2, T, D}),
                   .k = View(k, {1, 1, T, D}),
                   .v = View(v, {1, 1, T, D}),
                   .rope = View(rope, {T, D}),
                   .q_norm = View(norm, {D}),
                   .k_norm = View(norm, {D}),
                   .v_norm = View(norm, {D}),
                   .scales = View(scales, {T, 4})},
                  View(dqkv, {T, 4 * D}), View(dq_norm, {D}), View(dk_norm, {D}),
                  View(dv_norm, {D}));
  dq_norm.insert(dq_norm.end(), dk_norm.begin(), dk_norm.end());
  dq_norm.insert(dq_norm.end(), dv_norm.begin(), dv_norm.end());
  return dq_norm;
}

std::vector<float> Attention(const Ops& ops, const AttentionShape& shape, DType dtype) {
  const auto [B, T, H, K, D] = shape;
  const Shape queries = {B, H, T, D}, keys = {B, K, T, D}, rows = {B * T, H * D};
  std::vector<float> q = RandomFloats(queries.elements(), 10, dtype),
                     k = RandomFloats(keys.elements(), 11, dtype),
                     v = RandomFloats(keys.elements(), 12, dtype),
                     dout = RandomFloats(rows.elements(), 13, dtype), out(q.size()), dq(q.size()),
                     dk(k.size()), dv(k.size()), lse(static_cast<size_t>(B * H * T));
  {
    const Lent lent_q(q, queries, dtype), lent_k(k, keys, dtype), lent_v(v, keys, dtype),
        lent_out(out, rows, dtype), lent_dout(dout, rows, dtype), lent_dq(dq, queries, dtype),
        lent_dk(dk, keys, dtype), lent_dv(dv, keys, dtype);
    const AttentionTensors t = {
        .q = lent_q, .k = lent_k, .v = lent_v, .out = lent_out, .lse = View(lse, {B, H, T})};
    ops.AttentionForward(shape, t);
    ops.AttentionBackward(shape, t,
                          {.dq = lent_dq, .dk = lent_dk, .dv = lent_dv, .dout = lent_dout});
  }
  dq.insert(dq.end(), dk.begin(), dk.end());
  dq.insert(dq.end(), dv.begin(), dv.end());
  return dq;
}

// A site with every weight that one can have: more than those of any scheme.
constexpr int64_t kWeights = kResidualScales;
constexpr ResidualRead kFullRead = {
    .x = ResidualRead::X::kBase, .base_norm = true, .y = true, .input_norm = true};
constexpr ResidualWrite kFullWrite = {.y = ResidualWrite::Y::kAdd, .output_norm = true};

std::vector<float> Residual(const Ops& ops, int64_t rows, int64_t columns, DType dtype) {
  const ResidualSite site = {.read_before = &kFullRead, .write = &kFullWrite, .read = &kFullRead};
  SiteRun run({"full", site, /*y_before=*/true, /*y_after=*/true}, rows, columns, dtype);
  run.ops = &ops;
  run.Forward(/*in_place=*/false);
  run.Backward(SiteRun::OutputGradient::kOwnMemory);
  std::vector<float> written = run.h;
  for (const auto* values : {&run.dx, &run.d_o, &run.dx_weight, &run.dy_weight, &run.dinput_weight,
                             &run.doutput_weight}) {
    written.insert(written.end(), values->begin(), values->end());
  }
  return written;
}

// ---- What is said is enough, and is what is asked for.

using Run = std::function<std::vector<float>(const Ops&)>;

// With so many bytes of workspace, whose end is guarded.
std::vector<float> RunWith(int64_t bytes, const Run& run) {
  CudaDevice device(/*card=*/0);
  const Storage workspace(device, bytes);
  const CudaOps ops(device.stream(), {.multiprocessors = 2, .warpgroup_products = true},
                    {workspace.data(), workspace.bytes()}, /*fused=*/nullptr);
  return run(UploadedOps(device, ops));
}

// The results are those of a usual device.
void ExpectSuffices(int64_t bytes, const Run& run) {
  const std::vector<float> expected = run(TestedOps());
  EXPECT_LE(RelativeError(RunWith(bytes, run), ToDouble(expected)), Float32Tolerance(100));
}

// And with fewer there are none.
void ExpectNeeds(int64_t bytes, const Run& run) {
  ExpectSuffices(bytes, run);
  EXPECT_DEATH(RunWith(bytes - 1, run),
               "an operation needs [0-9]+ bytes of workspace, there are [0-9]+");
}

TEST(CudaWorkspaceDeathTest, OperationsNeedWhatIsSaid) {
  ExpectNeeds(EmbeddingBackwardBytes(600), EmbeddingBackward);
  ExpectNeeds(RouteTokensBytes(100, 5), RouteTokens);
  ExpectNeeds(QkvBackwardBytes(/*blocks=*/3, 8), QkvBackward);
}

// One of four key heads at a time.
TEST(CudaWorkspaceDeathTest, AttentionNeedsRoomForOneKeyHead) {
  for (const DType dtype : kActivationTypes) {
    ExpectNeeds(AttentionBackwardBytes(3, 17), [&](const Ops& ops) {
      return Attention(ops, {.batch = 2, .sequence = 17, .heads = 6, .kv_heads = 2, .head_dim = 8},
                       dtype);
    });
  }
}

// Two of three key heads, and then the third.
TEST(CudaWorkspace, AttentionTakesAsManyKeyHeadsAsThereIsRoomFor) {
  for (const DType dtype : kActivationTypes) {
    ExpectSuffices(2 * AttentionBackwardBytes(2, 17), [&](const Ops& ops) {
      return Attention(ops, {.batch = 1, .sequence = 17, .heads = 6, .kv_heads = 3, .head_dim = 8},
                       dtype);
    });
  }
}

// Rows of 33 columns, which registers do not hold, are padded to packs of one warp's threads.
TEST(CudaWorkspaceDeathTest, ResidualSitesNeedRoomForOneBlock) {
  ExpectNeeds(ResidualBytes(kWeights + 1, 128),
              [](const Ops& ops) { return Residual(ops, 5, 33, DType::kF32); });
}

// ---- No job needs more than there is.

JobSpec CudaJob() {
  const absl::StatusOr<JobSpec> job = ParseJobSpec(
      "model { layers: 1 hidden: 8 heads: 1 head_dim: 8 ffn: 8 vocabulary: 8 sequence: 1 }"
      "data { train { path: 'a.bin' } }"
      "train { steps: 1 device: CUDA }",
      "job.textproto");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

// The largest number up to 2^30 with which the rules let the job through, and every smaller one.
int64_t Edge(const std::function<void(int64_t, JobSpec&)>& set) {
  const auto fits = [&](int64_t number) {
    JobSpec job = CudaJob();
    set(number, job);
    return JobProblems(job, 0).empty();
  };
  int64_t fitting = 0, too_large = (int64_t{1} << 30) + 1;
  while (too_large - fitting > 1) {
    const int64_t middle = (fitting + too_large) / 2;
    (fits(middle) ? fitting : too_large) = middle;
  }
  EXPECT_GT(fitting, 1);
  return fitting;
}

int64_t MostTokens() {
  return Edge([](int64_t n, JobSpec& job) { job.mutable_train()->set_microbatch(n); });
}

TEST(CudaWorkspace, EveryJobsTokensCanBeSorted) {
  EXPECT_LE(EmbeddingBackwardBytes(MostTokens()), kWorkspaceBytes);
  EXPECT_EQ(Edge([](int64_t n, JobSpec& job) { job.mutable_model()->set_sequence(n); }),
            MostTokens());
  const int64_t blocks = Edge([](int64_t n, JobSpec& job) {
    job.mutable_parallel()->set_context(4);
    job.mutable_model()->set_sequence(8 * n);
  });
  EXPECT_LE(EmbeddingBackwardBytes(2 * blocks), kWorkspaceBytes);
}

TEST(CudaWorkspace, EveryJobsTokensCanBeRouted) {
  const int64_t most = MostTokens();
  const int64_t experts = Edge([](int64_t n, JobSpec& job) {
    job.mutable_model()->mutable_moe()->set_experts(n);
    job.mutable_model()->mutable_moe()->set_top_k(1);
  });
  // Of all numbers of tokens that make the most parts of which there is one.
  const int64_t tokens = int64_t{32} * 1024;
  EXPECT_GE(RouterPartsOf(tokens).parts, RouterPartsOf(most).parts);
  EXPECT_LE(RouteTokensBytes(tokens, experts), kWorkspaceBytes);
  EXPECT_LE(RouteTokensBytes(most, experts), kWorkspaceBytes);
}

// Of query heads for a key head, of one tensor rank as of several, that have each one or share one.
TEST(CudaWorkspace, TheDeltasOfEveryJobsKeyHeadsFit) {
  for (const int64_t group : {1, 2, 8, 9, 64, 1000, 100000}) {
    for (const int64_t tensor : {1, 4}) {
      for (const int64_t kv_heads : {1, 4}) {
        const int64_t blocks = Edge([&](int64_t n, JobSpec& job) {
          job.mutable_parallel()->set_tensor(static_cast<int32_t>(tensor));
          job.mutable_parallel()->set_context(2);
          job.mutable_model()->set_kv_heads(kv_heads);
          job.mutable_model()->set_heads(group * std::max(kv_heads, tensor));
          job.mutable_model()->set_sequence(4 * n);
        });
        EXPECT_LE(AttentionBackwardBytes(group, 2 * blocks), kWorkspaceBytes)
            << group << " query heads of each of " << kv_heads << " over " << tensor << " ranks";
      }
    }
  }
}

int64_t LargestHead() {
  return 2 * Edge([](int64_t n, JobSpec& job) { job.mutable_model()->set_head_dim(2 * n); });
}

TEST(CudaWorkspace, EveryJobsNormsOfHeadsFit) {
  EXPECT_LE(QkvBackwardBytes(kMostQkvBlocks, LargestHead()), kWorkspaceBytes);
}

TEST(CudaWorkspace, EveryJobsRowsFit) {
  const int64_t hidden = Edge([](int64_t n, JobSpec& job) { job.mutable_model()->set_hidden(n); });
  ASSERT_LE(ResidualBytes(kWeights + 1, hidden), kWorkspaceBytes);  // without padding
  for (const DType dtype : kActivationTypes) {
    for (const float value : Residual(TestedOps(), 1, hidden, dtype)) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
  // A router's three products.
  EXPECT_LE(ProductError(TestedOps(), {2, 3, hidden}, {.transpose_b = true}, {.a = DType::kBF16}),
            Float32Tolerance(hidden));
  EXPECT_LE(ProductError(TestedOps(), {2, hidden, 3}, {.accumulate = true}, {.out = DType::kBF16}),
            Tolerance(DType::kBF16, 3));
  EXPECT_LE(ProductError(TestedOps(), {3, hidden, 2}, {.transpose_a = true}, {.b = DType::kBF16}),
            Float32Tolerance(2));
}

// Of a group of one row of bf16: blocks have the same shared memory for every size.
void GroupedProduct(const Ops& ops) {
  std::vector<float> row(8), matrix(64), out(8);
  const Lent a(row, {1, 8}, DType::kBF16), b(matrix, {8, 8}, DType::kBF16);
  const std::vector<int64_t> rows_of_group = {1};
  ops.GroupedMatmul(View(out, {1, 8}), a, b, rows_of_group, {.transpose_b = true});
}

// ---- Shared memory. A block that asks for more than kSharedBytesOfABlock ends the process.

TEST(CudaWorkspace, NoCardIsRefusedForSharedMemoryThatNoKernelAsksFor) {
  const int64_t largest_head = LargestHead();
  ASSERT_LT(largest_head, 1 << 20);
  for (const DType dtype : kActivationTypes) {
    for (const int64_t head_dim : {int64_t{64}, int64_t{128}, int64_t{256}, largest_head}) {
      Attention(TestedOps(),
                {.batch = 1, .sequence = 1, .heads = 1, .kv_heads = 1, .head_dim = head_dim},
                dtype);
    }
    for (int64_t columns = 1024; columns <= 16384; columns *= 2) {
      Residual(TestedOps(), 1, columns, dtype);
    }
  }
  GroupedProduct(TestedOps());
  EXPECT_EQ(gpu::MostSharedBytes(), kSharedBytesOfABlock);
}

}  // namespace
}  // namespace twinstream::testing
