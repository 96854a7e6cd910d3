#include "parallel/parameter_store.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/ops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/initializer.h"

namespace twinstream {
namespace {

using ::testing::Each;

constexpr uint64_t kSeed = 3;

// Rows 2-3 and 6-9 of a [10, 5] tensor, one below the other.
ParameterSpec TwoBoxes() {
  const Shape global{10, 5};
  ParameterSpec spec;
  spec.name = "layers.0.mlp.up.weight";
  spec.global = global;
  spec.boxes = {{Box::Range(global, 0, 2, 4)}, {Box::Range(global, 0, 6, 10)}};
  spec.init_std = 0.02F;
  return spec;
}

// Columns 3-7 of a [6, 8] tensor.
ParameterSpec Columns() {
  const Shape global{6, 8};
  ParameterSpec spec;
  spec.name = "layers.0.mlp.down.weight";
  spec.global = global;
  spec.boxes = {{Box::Range(global, 1, 3, 8)}};
  spec.init_std = 0.5F;
  return spec;
}

ParameterSpec Norm() {
  ParameterSpec spec;
  spec.name = "final.norm.weight";
  spec.global = {7};
  spec.boxes = {{Box::Whole(spec.global)}};
  return spec;
}

std::vector<float> Floats(Tensor tensor) {
  return {tensor.As<float>(), tensor.As<float>() + tensor.elements()};
}

class ParameterStoreTest : public ::testing::Test {
 protected:
  ParameterStoreTest() : device_(MakeDevice("cpu", {.threads = 1}).value()) {
    for (const ParameterSpec& spec : {TwoBoxes(), Columns(), Norm()}) store_.Declare(spec);
  }
  std::unique_ptr<Device> device_;
  ParameterStore store_;
};

TEST(LocalShape, BoxesLieOneBelowTheOther) {
  EXPECT_EQ(LocalShape(TwoBoxes()), (Shape{6, 5}));
  EXPECT_EQ(LocalShape(Columns()), (Shape{6, 5}));
  EXPECT_EQ(LocalShape(Norm()), (Shape{7}));
}

// Columns 1-2 of all rows of matrices 2 and 0 of [3, 4, 5].
ParameterSpec Matrices() {
  const Shape global{3, 4, 5};
  ParameterSpec spec;
  spec.name = "layers.0.moe.up.weight";
  spec.global = global;
  spec.boxes = {{{{2, 0, 1}, {1, 4, 2}}}, {{{0, 0, 1}, {1, 4, 2}}}};
  spec.init_std = 1;
  return spec;
}

TEST(LocalShape, RowsOfMatricesLieOneBelowTheOther) {
  EXPECT_EQ(LocalShape(Matrices()), (Shape{8, 2}));
}

// Rows 3 to 5 of the eight: the last of matrix 2, the first two of matrix 0.
TEST(Pieces, OfMatricesAreBoxesOfOneMatrixEach) {
  const std::unique_ptr<Device> device = MakeDevice("cpu", {.threads = 1}).value();
  ParameterStore store;
  const Parameter& parameter = store.Declare(Matrices());
  store.Materialize(*device, Gradients::kNone);
  store.Initialize(*device, kSeed);
  const std::vector<Piece> pieces =
      PiecesOf(parameter, "name", {3, 6}, parameter.value.Rows(3, 6), Copies::kAll);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].box, (Box{{2, 3, 1}, {1, 1, 2}}));
  EXPECT_EQ(pieces[1].box, (Box{{0, 0, 1}, {1, 2, 2}}));
  for (const Piece& piece : pieces) {
    std::vector<float> expected(static_cast<size_t>(piece.box.elements()));
    InitializeBox(1, kSeed, "layers.0.moe.up.weight", piece.global, piece.box, expected.data());
    EXPECT_EQ(Floats(piece.data), expected);
  }
}

TEST_F(ParameterStoreTest, BytesAreKnownBeforeMaterialize) {
  // Each tensor is aligned to 64 bytes: 120, 120 and 28 bytes.
  EXPECT_EQ(store_.value_bytes(), 128 + 128 + 64);
  EXPECT_EQ(store_.gradient_bytes(), store_.value_bytes());
}

TEST_F(ParameterStoreTest, TensorsDoNotOverlap) {
  store_.Materialize(*device_, Gradients::kAllocated);
  float next = 0;
  for (const auto& parameter : store_.parameters())
    for (const Tensor& tensor : {parameter->value, parameter->gradient})
      for (int64_t i = 0; i < tensor.elements(); ++i) tensor.As<float>()[i] = next++;
  next = 0;
  for (const auto& parameter : store_.parameters())
    for (const Tensor& tensor : {parameter->value, parameter->gradient})
      for (int64_t i = 0; i < tensor.elements(); ++i) ASSERT_EQ(tensor.As<float>()[i], next++);
}

TEST_F(ParameterStoreTest, ReferencesStayValid) {
  ParameterStore store;
  Parameter& first = store.Declare(TwoBoxes());
  for (int i = 0; i < 100; ++i) {
    ParameterSpec spec = Norm();
    spec.name += std::to_string(i);
    store.Declare(spec);
  }
  store.Materialize(*device_, Gradients::kAllocated);
  EXPECT_EQ(&first, store.parameters()[0].get());
  EXPECT_EQ(first.value.shape(), (Shape{6, 5}));
}

TEST_F(ParameterStoreTest, InitialValuesAreThoseOfTheWholeTensor) {
  store_.Materialize(*device_, Gradients::kAllocated);
  store_.Initialize(*device_, kSeed);
  for (const auto& parameter : store_.parameters()) {
    const ParameterSpec& spec = parameter->spec;
    std::vector<float> expected;
    for (const HeldBox& held : spec.boxes) {
      std::vector<float> values(static_cast<size_t>(held.box.elements()));
      InitializeBox(spec.init_std * held.init_gain, kSeed, spec.name, spec.global, held.box,
                    values.data());
      expected.insert(expected.end(), values.begin(), values.end());
    }
    EXPECT_EQ(Floats(parameter->value), expected) << spec.name;
    EXPECT_THAT(Floats(parameter->gradient), Each(0.0F)) << spec.name;
  }
}

// More elements than are drawn at a time.
TEST_F(ParameterStoreTest, LargeTensorsAreInitialisedWhole) {
  ParameterSpec spec = TwoBoxes();
  spec.global = {3000, 1000};
  spec.boxes = {{Box::Range(spec.global, 0, 100, 2900)}};
  ParameterStore store;
  const Parameter& parameter = store.Declare(spec);
  store.Materialize(*device_, Gradients::kAllocated);
  store.Initialize(*device_, kSeed);
  std::vector<float> expected(2'800'000);
  InitializeBox(spec.init_std, kSeed, spec.name, spec.global, spec.boxes[0].box, expected.data());
  EXPECT_EQ(Floats(parameter.value), expected);
}

TEST_F(ParameterStoreTest, ClearGradientsReachesEveryGradientAndNoValue) {
  store_.Materialize(*device_, Gradients::kAllocated);
  for (const auto& parameter : store_.parameters())
    for (const Tensor& tensor : {parameter->value, parameter->gradient})
      std::fill_n(tensor.As<float>(), tensor.elements(), 4.0F);
  store_.ClearGradients(device_->ops());
  for (const auto& parameter : store_.parameters()) {
    EXPECT_THAT(Floats(parameter->gradient), Each(0.0F));
    EXPECT_THAT(Floats(parameter->value), Each(4.0F));
  }
}

TEST_F(ParameterStoreTest, TheFirstContributionOfAStepIsToldSo) {
  ParameterSpec spec;
  spec.name = "written";
  spec.global = {2, 3};
  spec.boxes = {{Box::Whole(spec.global)}};
  spec.first_overwrites = true;
  ParameterStore store;
  Parameter& parameter = store.Declare(spec);
  spec.name = "zeroed";
  spec.first_overwrites = false;
  Parameter& other = store.Declare(spec);
  store.Materialize(*device_, Gradients::kAllocated);
  for (int step = 0; step < 2; ++step) {
    store.ClearGradients(device_->ops());
    EXPECT_FALSE(parameter.AddsToGradient());
    EXPECT_TRUE(parameter.AddsToGradient());
    EXPECT_TRUE(parameter.AddsToGradient());
    EXPECT_TRUE(other.AddsToGradient());
  }
}

TEST_F(ParameterStoreTest, PiecesAreTheBoxesUnderTheRows) {
  store_.Materialize(*device_, Gradients::kAllocated);
  const Parameter& parameter = *store_.parameters()[0];
  const Tensor local = parameter.value.Rows(1, 4);
  const std::vector<Piece> pieces = PiecesOf(parameter, "adam_m.up", {1, 4}, local, Copies::kAll);
  ASSERT_EQ(pieces.size(), 2);
  EXPECT_EQ(pieces[0].name, "adam_m.up");
  EXPECT_EQ(pieces[0].global, (Shape{10, 5}));
  EXPECT_EQ(pieces[0].box, (Box{{3, 0}, {1, 5}}));  // local row 1 is global row 3
  EXPECT_EQ(pieces[0].data.data(), local.data());
  EXPECT_EQ(pieces[1].box, (Box{{6, 0}, {2, 5}}));  // local rows 2, 3 are global rows 6, 7
  EXPECT_EQ(pieces[1].data.data(), local.Rows(1, 3).data());
  EXPECT_EQ(pieces[1].data.shape(), (Shape{2, 5}));
}

TEST_F(ParameterStoreTest, PrimaryPiecesLeaveOutBoxesOfOtherRanks) {
  ParameterSpec spec = TwoBoxes();
  spec.boxes[0].primary = false;
  ParameterStore store;
  const Parameter& parameter = store.Declare(spec);
  store.Materialize(*device_, Gradients::kAllocated);
  const Range all = {0, 6};
  const std::vector<Piece> pieces =
      PiecesOf(parameter, "name", all, parameter.value, Copies::kPrimary);
  ASSERT_EQ(pieces.size(), 1);
  EXPECT_EQ(pieces[0].box, spec.boxes[1].box);
  EXPECT_EQ(pieces[0].data.data(), parameter.value.Rows(2, 6).data());
  EXPECT_EQ(PiecesOf(parameter, "name", all, parameter.value, Copies::kAll).size(), 2);
}

TEST_F(ParameterStoreTest, WithoutGradientsThereAreOnlyValues) {
  store_.Materialize(*device_, Gradients::kNone);
  for (const auto& parameter : store_.parameters()) {
    EXPECT_TRUE(parameter->value);
    EXPECT_FALSE(parameter->gradient);
  }
}

TEST_F(ParameterStoreTest, NoRowsNoPieces) {
  store_.Materialize(*device_, Gradients::kAllocated);
  const Parameter& parameter = *store_.parameters()[0];
  EXPECT_TRUE(
      PiecesOf(parameter, "name", {2, 2}, parameter.value.Rows(2, 2), Copies::kAll).empty());
}

TEST(ParameterStoreDeathTest, NamesAreUnique) {
  ParameterStore store;
  store.Declare(Norm());
  EXPECT_DEATH(store.Declare(Norm()), "final.norm.weight is declared twice");
}

}  // namespace
}  // namespace twinstream
