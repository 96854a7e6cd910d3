// What attention.cu hands to a library or to products of warpgroups, and how a call is cut into
// parts for a library.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/attention_part.h"
#include "core/cuda/device.h"
#include "core/cuda/emulated/runtime.h"
#include "core/cuda/fused_attention.h"
#include "core/cuda/ops.h"
#include "core/device.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::ExitedWithCode;

// Of a library, of which it does nothing: its calls.
struct Calls {
  int forward = 0, backward = 0;
  friend bool operator==(const Calls&, const Calls&) = default;
};

class RecordingAttention final : public FusedAttention {
 public:
  RecordingAttention(Calls& calls, bool has_kernels) : calls_(calls), has_kernels_(has_kernels) {}

  std::string name() const override { return "recording"; }
  bool Forward(const AttentionShape& /*shape*/, const AttentionTensors& /*t*/) override {
    ++calls_.forward;
    return has_kernels_;
  }
  bool Backward(const AttentionShape& /*shape*/, const AttentionTensors& /*t*/,
                const AttentionGradients& /*g*/) override {
    ++calls_.backward;
    return has_kernels_;
  }

 private:
  Calls& calls_;
  bool has_kernels_;
};

// q, k, v and dout, and the results.
struct Types {
  DType operands = DType::kBF16, results = DType::kBF16;
};

class Attention {
 public:
  Attention(const AttentionShape& shape, Types types) : shape_(shape) {
    const auto [B, T, H, K, D] = shape;
    const Shape queries = {B, H, T, D}, keys = {B, K, T, D}, tokens = {B * T, H * D};
    t_ = {.q = Filled(types.operands, queries, 0.3F),
          .k = Filled(types.operands, keys, 0.7F),
          .v = Filled(types.operands, keys, 1.1F),
          .out = scratch_.Allocate(types.results, tokens),
          .lse = scratch_.Allocate(DType::kF32, {B, H, T})};
    g_ = {.dq = scratch_.Allocate(types.results, queries),
          .dk = scratch_.Allocate(types.results, keys),
          .dv = scratch_.Allocate(types.results, keys),
          .dout = Filled(types.operands, tokens, 1.9F)};
  }

  // The triangle of all tokens, forward and backward.
  void RunTriangle(std::unique_ptr<FusedAttention> fused) {
    const CudaOps ops = Ops(std::move(fused));
    ops.AttentionForward(shape_, t_);
    ops.AttentionBackward(shape_, t_, g_);
  }
  void RunBackward() { Ops(nullptr).AttentionBackward(shape_, t_, g_); }
  void RunRectangle(std::unique_ptr<FusedAttention> fused) {
    const CudaOps ops = Ops(std::move(fused));
    const AttentionRectangle all = {.query_end = shape_.sequence, .key_end = shape_.sequence};
    ops.AttentionMergeForward(shape_, all, t_);
    ops.AttentionMergeBackward(shape_, all, t_, g_);
  }

  // Of out, lse and the gradients.
  std::vector<std::byte> Results() {
    std::vector<std::byte> bytes;
    device_.Synchronize();
    for (Tensor tensor : {t_.out, t_.lse, g_.dq, g_.dk, g_.dv}) {
      bytes.insert(bytes.end(), tensor.data(), tensor.data() + tensor.bytes());
    }
    return bytes;
  }

 private:
  CudaOps Ops(std::unique_ptr<FusedAttention> fused) {
    return {device_.stream(),
            {.multiprocessors = 2, .warpgroup_products = true},
            {workspace_.data(), workspace_.bytes()},
            std::move(fused)};
  }
  Tensor Filled(DType dtype, const Shape& shape, float step) {
    const Tensor tensor = scratch_.Allocate(dtype, shape);
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(step * static_cast<float>(i));
    CopyInRounded(device_, tensor, values);
    return tensor;
  }

  AttentionShape shape_;
  CudaDevice device_{/*card=*/0};
  Scratch scratch_{device_, int64_t{1} << 20};
  Storage workspace_{device_, kWorkspaceBytes};
  AttentionTensors t_;
  AttentionGradients g_;
};

AttentionShape ShapeOf(int64_t head_dim) {
  return {.batch = 1, .sequence = 20, .heads = 2, .kv_heads = 1, .head_dim = head_dim};
}

Calls CallsOfTriangle(const AttentionShape& shape, Types types) {
  Calls calls;
  Attention(shape, types).RunTriangle(std::make_unique<RecordingAttention>(calls, true));
  return calls;
}

TEST(FusedAttention, IsAskedForTrianglesOfBFloat16) {
  for (int64_t head_dim : {64, 128}) {
    EXPECT_EQ(CallsOfTriangle(ShapeOf(head_dim), {}), (Calls{.forward = 1, .backward = 1}));
  }
}

TEST(FusedAttention, IsNotAskedForOtherTypesOrHeads) {
  for (const Types types : {Types{.operands = DType::kF32, .results = DType::kF32},
                            Types{.operands = DType::kBF16, .results = DType::kF32}}) {
    EXPECT_EQ(CallsOfTriangle(ShapeOf(64), types), Calls());
  }
  for (int64_t head_dim : {32, 60, 96, 256}) {
    EXPECT_EQ(CallsOfTriangle(ShapeOf(head_dim), {}), Calls()) << head_dim;
  }
  AttentionShape empty = ShapeOf(64);
  empty.batch = 0;
  EXPECT_EQ(CallsOfTriangle(empty, {}), Calls());
}

TEST(FusedAttention, IsNotAskedForRectangles) {
  Calls calls;
  Attention(ShapeOf(64), {}).RunRectangle(std::make_unique<RecordingAttention>(calls, true));
  EXPECT_EQ(calls, Calls());
}

// Zeros were there before.
TEST(FusedAttention, ComputesWhatItHasKernelsFor) {
  Calls calls;
  Attention attention(ShapeOf(64), {});
  attention.RunTriangle(std::make_unique<RecordingAttention>(calls, true));
  const std::vector<std::byte> results = attention.Results();
  EXPECT_EQ(results, std::vector<std::byte>(results.size()));
}

TEST(FusedAttention, LeavesTheRestToOurKernels) {
  Calls calls;
  Attention refused(ShapeOf(64), {}), ours(ShapeOf(64), {});
  refused.RunTriangle(std::make_unique<RecordingAttention>(calls, false));
  ours.RunTriangle(nullptr);
  EXPECT_EQ(calls, (Calls{.forward = 1, .backward = 1}));
  const std::vector<std::byte> results = ours.Results();
  EXPECT_NE(results, std::vector<std::byte>(results.size()));
  EXPECT_EQ(refused.Results(), results);
}

// On a card without them, such products end the process.
TEST(WarpgroupAttentionDeathTest, HasHeadsOfUpTo128OfBFloat16) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](auto run_form, int64_t head_dim, DType operands) {
    gpu::SetEmulatedHost({.capability_major = 8, .capability_minor = 0});
    Attention attention(ShapeOf(head_dim), {.operands = operands, .results = DType::kF32});
    run_form(attention);
    attention.Results();
    std::exit(0);
  };
  const auto died = [](const std::string& kernel) {
    return kernel + ": products of warpgroups on a card of compute capability 8.0";
  };
  const auto triangle = [](Attention& attention) { attention.RunTriangle(nullptr); };
  const auto rectangle = [](Attention& attention) { attention.RunRectangle(nullptr); };
  const auto backward = [](Attention& attention) { attention.RunBackward(); };
  for (const int64_t head_dim : {8, 128}) {
    EXPECT_EXIT(run(triangle, head_dim, DType::kBF16), ExitedWithCode(1), died("Forward"));
    EXPECT_EXIT(run(rectangle, head_dim, DType::kBF16), ExitedWithCode(1), died("Forward"));
    EXPECT_EXIT(run(backward, head_dim, DType::kBF16), ExitedWithCode(1), died("QueryGradient"));
  }
  EXPECT_EXIT(run(triangle, 136, DType::kBF16), ExitedWithCode(0), "");
  EXPECT_EXIT(run(triangle, 64, DType::kF32), ExitedWithCode(0), "");
}

// The query heads of all parts, b H + h, as they come; their places in every tensor are checked.
std::vector<int64_t> HeadsOfParts(const AttentionShape& shape, PartSize size) {
  const auto [B, T, H, K, D] = shape;
  const int64_t group = H / K;
  std::vector<int64_t> heads;
  ForEachPart(shape, size, [&, T = T, H = H, K = K, D = D](const PartPlace& place) {
    for (int64_t b = 0; b < size.sequences; ++b) {
      for (int64_t h = 0; h < size.key_heads * group; ++h) {
        const int64_t query_head = place.queries / (T * D) + b * H + h;
        const int64_t sequence = query_head / H, head = query_head % H;
        heads.push_back(query_head);
        EXPECT_EQ(place.queries % (T * D), 0);
        EXPECT_EQ(place.keys + (b * K + h / group) * T * D, (sequence * K + head / group) * T * D);
        EXPECT_EQ(place.tokens + b * T * H * D + h * D, sequence * T * H * D + head * D);
        EXPECT_EQ(place.lse + (b * H + h) * T, query_head * T);
      }
    }
  });
  return heads;
}

TEST(AttentionParts, OfEverySizeHaveEveryHeadOnceInItsPlace) {
  const AttentionShape shape = {
      .batch = 6, .sequence = 5, .heads = 12, .kv_heads = 4, .head_dim = 8};
  std::vector<int64_t> all(static_cast<size_t>(shape.batch * shape.heads));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  PartSize size = {.sequences = shape.batch, .key_heads = shape.kv_heads};
  std::vector<int64_t> sizes;
  do {
    sizes.push_back(size.sequences * size.key_heads);
    EXPECT_EQ(HeadsOfParts(shape, size), all) << size.sequences << " " << size.key_heads;
  } while (MakeSmaller(size));
  EXPECT_EQ(sizes, (std::vector<int64_t>{24, 12, 4, 2, 1}));
}

}  // namespace
}  // namespace twinstream
