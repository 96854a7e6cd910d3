#include "parallel/checkpoint_plan.h"

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Splits the box at random places into disjoint parts.
std::vector<Box> RandomLayout(const Shape& global, std::mt19937& random) {
  std::vector<Box> boxes = {Box::Whole(global)};
  const int cuts = static_cast<int>(random() % 6);
  for (int cut = 0; cut < cuts && global.rank() > 0; ++cut) {
    const size_t chosen = random() % boxes.size();
    const int d = static_cast<int>(random() % static_cast<unsigned>(global.rank()));
    Box below = boxes[chosen], above = boxes[chosen];
    below.extent[d] = static_cast<int64_t>(random() % static_cast<unsigned>(below.extent[d] + 1));
    above.begin[d] += below.extent[d];
    above.extent[d] -= below.extent[d];
    boxes[chosen] = below;
    boxes.push_back(above);  // may be empty, as a rank without rows is
  }
  return boxes;
}

// A piece whose elements are their own row-major index in the global tensor; memory in `store`.
Piece NumberedPiece(const std::string& name, const Shape& global, const Box& box,
                    std::vector<std::vector<float>>& store) {
  std::vector<float> numbers(static_cast<size_t>(global.elements()));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  store.emplace_back(static_cast<size_t>(box.elements()));
  std::byte* data = reinterpret_cast<std::byte*>(store.back().data());
  CopyBox(box, Box::Whole(global), reinterpret_cast<const std::byte*>(numbers.data()), box, data,
          sizeof(float));
  return {name, global, box, Tensor(data, DType::kF32, box.extent)};
}

// The shard of one rank and its bytes, offsets filled in as a writer does.
Manifest Shard(int rank, absl::Span<const Piece> owned, std::vector<std::string>& files) {
  Manifest shard = DescribeShard(absl::StrCat("shard_", rank), owned);
  std::string& file = files.emplace_back("header");
  for (StoredTensor& tensor : *shard.mutable_tensor()) {
    for (StoredBox& stored : *tensor.mutable_box()) {
      stored.set_offset(static_cast<int64_t>(file.size()));
      for (const Piece& piece : owned) {
        if (piece.name != tensor.name() || !(piece.box == BoxOf(stored))) continue;
        file.append(reinterpret_cast<const char*>(piece.data.data()),
                    static_cast<size_t>(piece.data.bytes()));
      }
    }
  }
  shard.mutable_file(0)->set_bytes(static_cast<int64_t>(file.size()));
  return shard;
}

const std::vector<Shape> kShapes = {{}, {1}, {7}, {6, 5}, {3, 4, 5}, {2, 3, 2, 3}};

TEST(CheckpointPlanTest, EveryElementReadIsTheElementWrittenInAnyTwoLayouts) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t ranks = 1 + random() % 4;
    std::vector<std::vector<Piece>> owned(ranks);
    std::vector<std::vector<float>> store;
    for (size_t t = 0; t < kShapes.size(); ++t) {
      for (const Box& box : RandomLayout(kShapes[t], random)) {
        owned[random() % ranks].push_back(
            NumberedPiece(absl::StrCat("t", t), kShapes[t], box, store));
      }
    }
    std::vector<std::string> files;
    std::vector<Manifest> shards;
    for (size_t r = 0; r < ranks; ++r) {
      shards.push_back(Shard(static_cast<int>(r), owned[r], files));
    }
    const absl::StatusOr<Manifest> manifest = MergeShards(shards);
    ASSERT_TRUE(manifest.ok()) << manifest.status();

    for (size_t t = 0; t < kShapes.size(); ++t) {
      const StoredTensor* tensor = FindTensor(*manifest, absl::StrCat("t", t));
      ASSERT_NE(tensor, nullptr);
      for (const Box& needed : RandomLayout(kShapes[t], random)) {
        const Piece expected = NumberedPiece("t", kShapes[t], needed, store);
        std::vector<float> read(static_cast<size_t>(needed.elements()), -1.f);
        for (const BoxRead& part : PlanReads(*tensor, needed)) {
          const std::string& file = files[static_cast<size_t>(part.stored->file())];
          CopyBox(part.common, part.box,
                  reinterpret_cast<const std::byte*>(file.data()) + part.stored->offset(), needed,
                  reinterpret_cast<std::byte*>(read.data()), sizeof(float));
        }
        const float* wanted = expected.data.As<float>();
        EXPECT_TRUE(std::equal(read.begin(), read.end(), wanted))
            << kShapes[t].ToString() << " " << needed.ToString();
      }
    }
  }
}

// Shards of rank 0 and 1 that hold these boxes of a [8, 4] tensor "w".
absl::Status Merge(const std::vector<Box>& first, const std::vector<Box>& second) {
  std::vector<std::vector<float>> store;
  std::vector<Manifest> shards;
  std::vector<std::string> files;
  for (const std::vector<Box>& boxes : {first, second}) {
    std::vector<Piece> owned;
    for (const Box& box : boxes) owned.push_back(NumberedPiece("w", {8, 4}, box, store));
    shards.push_back(Shard(static_cast<int>(shards.size()), owned, files));
  }
  return MergeShards(shards).status();
}

TEST(CheckpointPlanTest, MissingAndDoubledElementsAreNamed) {
  const Shape global{8, 4};
  const auto rows = [&](int64_t from, int64_t to) { return Box::Range(global, 0, from, to); };
  EXPECT_TRUE(Merge({rows(0, 3), rows(5, 8)}, {rows(3, 5)}).ok());
  EXPECT_THAT(std::string(Merge({rows(0, 3)}, {rows(5, 8)}).message()),
              AllOf(HasSubstr("tensor w"), HasSubstr("[3:5, 0:4] is stored nowhere")));
  EXPECT_THAT(std::string(Merge({rows(0, 5)}, {rows(4, 8)}).message()),
              AllOf(HasSubstr("tensor w"), HasSubstr("[4:5, 0:4] is stored twice")));
  // As many elements as the tensor has, but not each of them.
  EXPECT_THAT(std::string(Merge({rows(0, 4)}, {rows(0, 4)}).message()), HasSubstr("twice"));
  EXPECT_THAT(std::string(Merge({Box::Range(global, 1, 0, 2)}, {rows(0, 4)}).message()),
              HasSubstr("[0:4, 0:2] is stored twice"));
}

TEST(CheckpointPlanTest, RanksThatDisagreeOnAShapeAreRefused) {
  std::vector<std::vector<float>> store;
  std::vector<std::string> files;
  const std::vector<Piece> first = {NumberedPiece("w", {2, 2}, Box::Whole({2, 2}), store)};
  const std::vector<Piece> second = {NumberedPiece("w", {2, 3}, Box::Whole({2, 3}), store)};
  const std::vector<Manifest> shards = {Shard(0, first, files), Shard(1, second, files)};
  EXPECT_THAT(std::string(MergeShards(shards).status().message()), HasSubstr("[2, 3]"));
}

TEST(CheckpointPlanTest, ManifestsThatPointOutsideAreRefused) {
  std::vector<std::vector<float>> store;
  std::vector<std::string> files;
  const std::vector<Piece> owned = {NumberedPiece("w", {8, 4}, Box::Whole({8, 4}), store)};
  const absl::StatusOr<Manifest> good = MergeShards({Shard(0, owned, files)});
  ASSERT_TRUE(good.ok());
  const auto refused = [&](auto change) {
    Manifest manifest = *good;
    change(manifest, *manifest.mutable_tensor(0), *manifest.mutable_tensor(0)->mutable_box(0));
    return CheckManifest(manifest).code() == absl::StatusCode::kDataLoss;
  };
  EXPECT_FALSE(refused([](Manifest&, StoredTensor&, StoredBox&) {}));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_begin(0, 1); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_extent(0, -1); }));
  EXPECT_TRUE(
      refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_begin(0, INT64_MIN); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.add_extent(1); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_file(1); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_offset(1 << 20); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor&, StoredBox& box) { box.set_offset(-1); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor& tensor, StoredBox&) { tensor.clear_box(); }));
  EXPECT_TRUE(
      refused([](Manifest&, StoredTensor& tensor, StoredBox&) { tensor.set_shape(1, INT64_MAX); }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor& tensor, StoredBox&) {
    for (int d = 0; d < 3; ++d) tensor.add_shape(1);
  }));
  EXPECT_TRUE(refused([](Manifest&, StoredTensor& tensor, StoredBox&) { tensor.set_dtype("F8"); }));
  EXPECT_TRUE(refused([](Manifest& manifest, StoredTensor& tensor, StoredBox&) {
    *manifest.add_tensor() = tensor;
  }));
  EXPECT_TRUE(refused([](Manifest& manifest, StoredTensor&, StoredBox&) {
    manifest.mutable_file(0)->set_name("../x");
  }));
}

}  // namespace
}  // namespace twinstream
