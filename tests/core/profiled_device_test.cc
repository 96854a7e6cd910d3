#include "core/profiled_device.h"

#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/recording_device.h"

namespace twinstream {
namespace {

using ::testing::ElementsAre;
using ::twinstream::testing::RecordingDevice;
using ::twinstream::testing::RecordingOps;

constexpr double kFloat = 4, kHalf = 2;  // bytes

class ProfiledDeviceTest : public ::testing::Test {
 protected:
  // A tensor of its own address; nobody looks at what is there.
  Tensor Make(const Shape& shape, DType dtype = DType::kF32) {
    used_ += 64;
    return Tensor(memory_.data() + used_, dtype, shape);
  }
  // The work of the only operation of a step.
  OpRow RowOf(const std::function<void(const Ops&)>& call) {
    OpProfile profile;
    const auto device = MakeProfiledDevice(std::make_unique<RecordingDevice>(calls_), profile);
    profile.BeginStep();
    call(device->ops());
    profile.EndStep();
    EXPECT_EQ(profile.rows().size(), 1);
    return profile.rows()[0];
  }
  std::vector<std::function<void(const Ops&)>> EveryOperation();

  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
  size_t used_ = 0;
  std::vector<std::string> calls_;

  // Arguments that go by reference.
  const ResidualRead read_ = {.x = ResidualRead::X::kNorm};
  const ResidualSite site_ = {.read = &read_};
  const AttentionShape shape_ = {
      .batch = 1, .sequence = 2, .heads = 2, .kv_heads = 1, .head_dim = 4};
  const AttentionRectangle rectangle_ = {.query_begin = 1, .query_end = 2, .key_end = 2};
  const AttentionTensors attention_ = {Make({1, 2, 2, 4}), Make({1, 1, 2, 4}), Make({1, 1, 2, 4}),
                                       Make({2, 8}), Make({1, 2, 2})};
  const AttentionGradients gradients_ = {Make({1, 2, 2, 4}), Make({1, 1, 2, 4}), Make({1, 1, 2, 4}),
                                         Make({2, 8})};
  const ResidualForwardTensors forward_ = {.x = Make({2, 3}), .h = Make({2, 3})};
  const ResidualBackwardTensors backward_ = {
      .dx = Make({2, 3}), .dh = Make({2, 3}), .x = Make({2, 3})};
  const QkvTensors qkv_ = {.qkv = Make({2, 16}), .q = Make({1, 2, 2, 4})};
  const RoutingTensors routing_ = {.probabilities = Make({2, 3})};
  const RouterLossScales router_scales_;
  const AdamWOptions adamw_;
  const std::vector<AdamWItem> adamw_items_ = {{.weight = Make({3})}};
  const std::vector<Tensor> squared_ = {Make({3}), Make({5})};
};

// One call of each, with arguments that all differ.
std::vector<std::function<void(const Ops&)>> ProfiledDeviceTest::EveryOperation() {
  const Tensor a = Make({2, 3}), b = Make({3, 2}), c = Make({2, 2}), d = Make({4}), e = Make({5}),
               f = Make({6}), g = Make({6, 2});
  return {
      [=](const Ops& o) { o.Matmul(c, a, b, {}); },
      [=](const Ops& o) { o.Matmul(c, a, b, {.transpose_a = true}); },
      [=](const Ops& o) { o.Matmul(c, a, b, {.transpose_b = true}); },
      [=](const Ops& o) { o.Matmul(c, a, b, {.accumulate = true}); },
      [=](const Ops& o) { o.Matmul(c, a, b, {.varying = true}); },
      [=](const Ops& o) {
        o.GroupedMatmul(c, a, g, {1, 0}, {.accumulate = true});
      },
      [=, this](const Ops& o) { o.ResidualForward(site_, forward_); },
      [=, this](const Ops& o) { o.ResidualBackward(site_, backward_); },
      [=, this](const Ops& o) { o.QkvForward(shape_, 0.5F, qkv_); },
      [=, this](const Ops& o) { o.QkvBackward(shape_, qkv_, a, d, e, f); },
      [=, this](const Ops& o) { o.AttentionForward(shape_, attention_); },
      [=, this](const Ops& o) { o.AttentionBackward(shape_, attention_, gradients_); },
      [=, this](const Ops& o) { o.AttentionMergeForward(shape_, rectangle_, attention_); },
      [=, this](const Ops& o) {
        o.AttentionMergeBackward(shape_, rectangle_, attention_, gradients_);
      },
      [=](const Ops& o) { o.SwiGluForward(a, b); },
      [=](const Ops& o) { o.SwiGluBackward(a, b, c); },
      [=, this](const Ops& o) { o.RouteTokens(routing_); },
      [=, this](const Ops& o) { o.RouterBackward(routing_, a, router_scales_); },
      [=](const Ops& o) { o.AddRouterLosses(a, b, c, 3); },
      [=](const Ops& o) { o.GatherRows(a, b, c, d); },
      [=](const Ops& o) { o.CombineRows(a, b, c, d); },
      [=](const Ops& o) { o.RowProducts(a, b, c); },
      [=](const Ops& o) { o.EmbeddingForward(a, d, b, 7); },
      [=](const Ops& o) { o.EmbeddingBackward(a, d, b, 7); },
      [=](const Ops& o) { o.LogitStatistics(a, b, c, 7); },
      [=](const Ops& o) { o.MergeLogitStatistics(a, b, c, d); },
      [=](const Ops& o) { o.LogitGradient(a, b, c, d, 7, {.z_loss = 0.25F, .total = 0.5F}); },
      [this](const Ops& o) { o.AdamW(adamw_, adamw_items_); },
      [=, this](const Ops& o) { o.SumsOfSquares(a, squared_); },
      [=](const Ops& o) { o.Add(a, b); },
      [=](const Ops& o) { o.Cast(a, b); },
      [=](const Ops& o) { o.Scale(a, 0.5F); },
      [=](const Ops& o) { o.Zero(a); },
  };
}

TEST_F(ProfiledDeviceTest, EveryOperationGoesOnWithItsArgumentsAndIsAwaitedWhileRecorded) {
  std::set<std::string> names;
  for (const auto& operation : EveryOperation()) {
    std::vector<std::string> direct;
    operation(RecordingOps(direct));
    ASSERT_EQ(direct.size(), 1);
    names.insert(direct[0].substr(0, direct[0].find(' ')));

    OpProfile profile;
    const auto device = MakeProfiledDevice(std::make_unique<RecordingDevice>(calls_), profile);
    calls_.clear();
    operation(device->ops());
    EXPECT_EQ(calls_, direct);
    EXPECT_TRUE(profile.rows().empty()) << direct[0];

    calls_.clear();
    profile.BeginStep();
    operation(device->ops());
    std::thread([&] { operation(device->ops()); }).join();  // a collective's
    profile.EndStep();
    EXPECT_THAT(calls_, ElementsAre("Synchronize", direct[0], "Synchronize", direct[0]));
    ASSERT_EQ(profile.rows().size(), 1) << direct[0];
    EXPECT_EQ(profile.rows()[0].calls, 1) << direct[0];
    EXPECT_GE(profile.rows()[0].seconds, 0) << direct[0];
    EXPECT_GT(profile.rows()[0].work.bytes, 0) << direct[0];
    EXPECT_LE(profile.rows()[0].seconds, profile.step_seconds());
  }
  EXPECT_EQ(names.size(), 29);
}

TEST_F(ProfiledDeviceTest, TheDeviceGoesOnTooAndCopiesAreOperations) {
  OpProfile profile;
  const auto device = MakeProfiledDevice(std::make_unique<RecordingDevice>(calls_), profile);
  const Tensor a = Make({3}), b = Make({3});
  profile.BeginStep();
  device->Allocate(1);
  device->Free(nullptr, 1);
  device->AllocateHost(1);
  device->FreeHost(nullptr, 1);
  device->CopyIn(a, nullptr);
  device->CopyOut(nullptr, a);
  device->Synchronize();
  device->Copy(a, b);
  profile.EndStep();
  EXPECT_EQ(device->name(), "recording");
  EXPECT_THAT(calls_, ElementsAre("Allocate", "Free", "AllocateHost", "FreeHost", "CopyIn",
                                  "CopyOut", "Synchronize", "Synchronize", "Copy", "Synchronize"));
  ASSERT_EQ(profile.rows().size(), 1);
  EXPECT_EQ(profile.rows()[0].key.op, "copy");
  EXPECT_EQ(profile.rows()[0].work.bytes, 6 * kFloat);
}

TEST_F(ProfiledDeviceTest, ProductsCountTwoOperationsPerElementAndTermAndTellTheirRole) {
  const Tensor out = Make({2, 3});
  const OpRow forward = RowOf([&](const Ops& ops) {
    ops.Matmul(out, Make({2, 5}), Make({3, 5}), {.transpose_b = true});
  });
  EXPECT_EQ(forward.key, (OpKey{.op = "product nt", .m = 2, .n = 3, .k = 5}));
  EXPECT_EQ(forward.work.flops, 2 * 2 * 3 * 5);
  EXPECT_EQ(forward.work.bytes, (10 + 15 + 6) * kFloat);

  const OpRow gradient = RowOf([&](const Ops& ops) {
    ops.Matmul(out, Make({5, 2}, DType::kBF16), Make({5, 3}, DType::kBF16),
               {.transpose_a = true, .accumulate = true});
  });
  EXPECT_EQ(gradient.key,
            (OpKey{.op = "product tn +=", .dtype = DType::kBF16, .m = 2, .n = 3, .k = 5}));
  EXPECT_EQ(gradient.work.flops, 2 * 2 * 3 * 5);
  EXPECT_EQ(gradient.work.bytes, (10 + 15) * kHalf + 2 * 6 * kFloat);
}

TEST_F(ProfiledDeviceTest, ProductsOfVaryingExtentShareARow) {
  const OpRow forward = RowOf([&](const Ops& ops) {
    for (int64_t m : {2, 7}) {
      ops.Matmul(Make({m, 3}), Make({m, 5}), Make({5, 3}), {.varying = true});
    }
  });
  EXPECT_EQ(forward.key, (OpKey{.op = "product nn", .m = OpKey::kVarying, .n = 3, .k = 5}));
  EXPECT_EQ(forward.work.flops, 2 * (2 + 7) * 3 * 5);
  const OpRow gradient = RowOf([&](const Ops& ops) {
    for (int64_t k : {2, 7}) {
      ops.Matmul(Make({3, 5}), Make({k, 3}), Make({k, 5}), {.transpose_a = true, .varying = true});
    }
  });
  EXPECT_EQ(gradient.key, (OpKey{.op = "product tn", .m = 3, .n = 5, .k = OpKey::kVarying}));
  EXPECT_EQ(gradient.work.flops, 2 * (2 + 7) * 3 * 5);
}

// Three groups, the second without rows: its matrix is not read, or becomes zero.
TEST_F(ProfiledDeviceTest, GroupedProductsCountTheRowsOfTheirGroups) {
  const Tensor wide = Make({9, 5}), narrow = Make({9, 3});
  const OpRow forward = RowOf([&](const Ops& ops) {
    ops.GroupedMatmul(narrow, wide, Make({9, 5}), {2, 0, 4}, {.transpose_b = true});
  });
  EXPECT_EQ(forward.key, (OpKey{.op = "grouped product nt", .m = OpKey::kVarying, .n = 3, .k = 5}));
  EXPECT_EQ(forward.work.flops, 2 * 6 * 3 * 5);
  EXPECT_EQ(forward.work.bytes, (6 * (5 + 3) + 2 * 15) * kFloat);

  const auto gradient_with = [&](MatmulOptions options) {
    return RowOf([&](const Ops& ops) {
      ops.GroupedMatmul(Make({9, 5}), narrow, wide, {2, 0, 4}, options);
    });
  };
  const OpRow gradient = gradient_with({.transpose_a = true});
  EXPECT_EQ(gradient.key,
            (OpKey{.op = "grouped product tn", .m = 3, .n = 5, .k = OpKey::kVarying}));
  EXPECT_EQ(gradient.work.flops, 2 * 6 * 3 * 5);
  EXPECT_EQ(gradient.work.bytes, (6 * (5 + 3) + 3 * 15) * kFloat);
  const OpRow sum = gradient_with({.transpose_a = true, .accumulate = true});
  EXPECT_EQ(sum.key.op, "grouped product tn +=");
  EXPECT_EQ(sum.work.bytes, (6 * (5 + 3) + 2 * 2 * 15) * kFloat);
}

// B 2, T 3, H 4, K 2, D 8: six pairs of query and key in each of the eight heads.
TEST_F(ProfiledDeviceTest, AttentionCountsTheCausalTriangle) {
  const AttentionShape shape = {
      .batch = 2, .sequence = 3, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const Shape heads = {2, 4, 3, 8}, kv_heads = {2, 2, 3, 8}, rows = {6, 32};
  const AttentionTensors t = {Make(heads), Make(kv_heads), Make(kv_heads), Make(rows),
                              Make({2, 4, 3})};
  const AttentionGradients g = {Make(heads), Make(kv_heads), Make(kv_heads), Make(rows)};
  const OpRow forward = RowOf([&](const Ops& ops) { ops.AttentionForward(shape, t); });
  EXPECT_EQ(forward.work.flops, 4 * 6 * 8 * 8);
  EXPECT_EQ(forward.work.bytes, (192 + 96 + 96 + 192 + 24) * kFloat);
  const OpRow backward = RowOf([&](const Ops& ops) { ops.AttentionBackward(shape, t, g); });
  EXPECT_EQ(backward.work.flops, 10 * 6 * 8 * 8);
  EXPECT_EQ(backward.work.bytes, (2 * (192 + 96 + 96 + 192) + 24) * kFloat);
}

// Two of four queries against three keys.
TEST_F(ProfiledDeviceTest, MergedAttentionCountsTheRectangle) {
  const AttentionShape shape = {
      .batch = 1, .sequence = 4, .heads = 2, .kv_heads = 2, .head_dim = 8};
  const AttentionRectangle rectangle = {.query_begin = 2, .query_end = 4, .key_end = 3};
  const Shape heads = {1, 2, 4, 8}, rows = {4, 16};
  const AttentionTensors t = {Make(heads), Make(heads), Make(heads), Make(rows), Make({1, 2, 4})};
  const AttentionGradients g = {Make(heads), Make(heads), Make(heads), Make(rows)};
  const OpRow forward =
      RowOf([&](const Ops& ops) { ops.AttentionMergeForward(shape, rectangle, t); });
  EXPECT_EQ(forward.work.flops, 4 * 6 * 8 * 2);
  EXPECT_EQ(forward.work.bytes, (3 * 32 + 2 * 4 + 2 * 48) * kFloat);  // q, out; lse; k, v
  const OpRow backward =
      RowOf([&](const Ops& ops) { ops.AttentionMergeBackward(shape, rectangle, t, g); });
  EXPECT_EQ(backward.work.flops, 10 * 6 * 8 * 2);
  // q, out, dout and dq twice; lse; k, v, and dk, dv twice
  EXPECT_EQ(backward.work.bytes, (5 * 32 + 4 + 6 * 48) * kFloat);
}

class ProfiledSiteTest : public ProfiledDeviceTest {
 protected:
  // Rows [N, C] that are read or written, with every tensor there is at hand.
  double ForwardRows(const ResidualSite& site) {
    const Shape rows = {16, 32};
    const ResidualForwardTensors t = {.x = Make(rows),
                                      .y = Make(rows),
                                      .o = Make(rows),
                                      .x_out = Make(rows),
                                      .y_out = Make(rows),
                                      .h = Make(rows)};
    return RowOf([&](const Ops& ops) { ops.ResidualForward(site, t); }).work.bytes / kRow;
  }
  double BackwardRows(const ResidualSite& site, Tensor h = {}) {
    const Shape rows = {16, 32};
    const ResidualBackwardTensors t = {.dx = Make(rows),
                                       .dy = Make(rows),
                                       .dh = Make(rows),
                                       .x = Make(rows),
                                       .y = Make(rows),
                                       .o = Make(rows),
                                       .d_o = Make(rows),
                                       .h = h};
    return RowOf([&](const Ops& ops) { ops.ResidualBackward(site, t); }).work.bytes / kRow;
  }
  static constexpr double kRow = 16 * 32 * kFloat;
};

// SIAMESE_HYBRID_PRE before an MLP: x, y and o come in, x, y and h go out; back come dh, dx, dy
// and the stored x and y, and dx, dy, the gradient of o and h again go out.
TEST_F(ProfiledSiteTest, TwoStreamsTakeSixRowsForwardAndNineBackward) {
  const ResidualRead before = {.x = ResidualRead::X::kScale, .y = true};
  const ResidualWrite write = {.x_gain = 0.5F, .y = ResidualWrite::Y::kAdd};
  const ResidualRead read = {
      .x = ResidualRead::X::kBase, .base_norm = true, .y = true, .input_norm = true};
  const ResidualSite site = {.read_before = &before, .write = &write, .read = &read};
  EXPECT_EQ(ForwardRows(site), 6);
  EXPECT_EQ(BackwardRows(site, Make({16, 32})), 9);
  EXPECT_EQ(BackwardRows(site), 8);  // where h is kept
}

// PRE_NORM: x and o in, x and h out; dh, dx and x in, dx and the gradient of o out.
TEST_F(ProfiledSiteTest, OneStreamTakesFourRowsForwardAndFiveBackward) {
  const ResidualRead read = {.x = ResidualRead::X::kNorm};
  const ResidualWrite write;
  ResidualForwardTensors t = {
      .x = Make({16, 32}), .o = Make({16, 32}), .x_out = Make({16, 32}), .h = Make({16, 32})};
  const ResidualSite site = {.read_before = &read, .write = &write, .read = &read};
  EXPECT_EQ(RowOf([&](const Ops& ops) { ops.ResidualForward(site, t); }).work.bytes, 4 * kRow);
  EXPECT_EQ(BackwardRows(site), 5);
}

TEST_F(ProfiledSiteTest, TheFirstSiteReadsAndTheLastWrites) {
  const ResidualRead read = {.x = ResidualRead::X::kNorm, .y = true};
  const ResidualWrite write = {.y = ResidualWrite::Y::kAdd, .output_norm = true};
  EXPECT_EQ(ForwardRows({.read = &read}), 3);   // x, y; h
  EXPECT_EQ(BackwardRows({.read = &read}), 7);  // dh, x, y, dx, dy; dx, dy
  const ResidualSite last = {.read_before = &read, .write = &write};
  EXPECT_EQ(ForwardRows(last), 5);   // x, y, o; x, y
  EXPECT_EQ(BackwardRows(last), 4);  // dx, dy, o; the gradient of o
}

TEST_F(ProfiledDeviceTest, TheOptimizerTakesSevenNumbersAndTheRoundedOne) {
  const auto item_of = [&](int64_t elements) -> AdamWItem {
    return {.weight = Make({elements}),
            .m = Make({elements}),
            .v = Make({elements}),
            .gradient = Make({elements})};
  };
  const AdamWItem vector = item_of(3);
  AdamWItem matrix = item_of(10);
  matrix.rounded = Make({10}, DType::kBF16);
  const OpRow row = RowOf([&](const Ops& ops) { ops.AdamW({}, {vector, matrix}); });
  EXPECT_EQ(row.calls, 1);
  EXPECT_EQ(row.work.bytes, 3 * 7 * kFloat + 10 * (7 * kFloat + kHalf));
}

TEST_F(ProfiledDeviceTest, TheNormReadsEveryTensor) {
  const Tensor sums = Make({2}, DType::kF64), a = Make({3}), b = Make({10});
  EXPECT_EQ(RowOf([&](const Ops& ops) {
              ops.SumsOfSquares(sums, {a, b});
            }).work.bytes,
            13 * kFloat + 2 * 8);
}

TEST_F(ProfiledDeviceTest, WhatIsInPlaceIsReadAndWritten) {
  const Tensor out = Make({10}), a = Make({10});
  EXPECT_EQ(RowOf([&](const Ops& ops) { ops.Add(out, a); }).work.bytes, 30 * kFloat);
  EXPECT_EQ(RowOf([&](const Ops& ops) { ops.Scale(out, 2); }).work.bytes, 20 * kFloat);
  EXPECT_EQ(RowOf([&](const Ops& ops) { ops.Zero(out); }).work.bytes, 10 * kFloat);
}

TEST_F(ProfiledDeviceTest, TokensLookUpNoMoreRowsThanThereAre) {
  const Tensor table = Make({10, 4});
  for (int64_t tokens : {3, 100}) {
    const Tensor ids = Make({tokens}, DType::kI32), rows = Make({tokens, 4});
    const double looked_up = static_cast<double>(std::min<int64_t>(tokens, 10)) * 4 * kFloat;
    const double others = static_cast<double>(tokens) * (4 + 4 * kFloat);
    EXPECT_DOUBLE_EQ(
        RowOf([&](const Ops& ops) { ops.EmbeddingForward(rows, ids, table, 0); }).work.bytes,
        others + looked_up);
    EXPECT_DOUBLE_EQ(
        RowOf([&](const Ops& ops) { ops.EmbeddingBackward(table, ids, rows, 0); }).work.bytes,
        others + 2 * looked_up);
  }
}

}  // namespace
}  // namespace twinstream
