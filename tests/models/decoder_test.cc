#include "models/decoder.h"

#include <cmath>
#include <map>

#include "gtest/gtest.h"
#include "tests/testing/golden_run.h"

namespace twinstream {
namespace {

using NamesAndShapes = std::map<std::string, std::string>;

class DecoderGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  DecoderGoldenTest()
      : run_(GetParam()),
        parameters_(ModelParameters(run_.Job({}, 1, 1).model(), *MakeDevice("cpu").value())) {}

  testing::GoldenRun run_;
  std::vector<ModelParameter> parameters_;
};

TEST_P(DecoderGoldenTest, NamesAndShapesAreThoseOfTheReference) {
  NamesAndShapes expected, actual;
  for (const std::string& name : run_.golden().Names("param")) {
    expected[name] = run_.golden().ShapeOf("param." + name).ToString();
  }
  for (const ModelParameter& parameter : parameters_) {
    actual[parameter.name] = parameter.shape.ToString();
  }
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(parameters_.size(), expected.size()) << "a parameter is listed twice";
}

TEST_P(DecoderGoldenTest, TheEmbeddingComesFirstAndLayersInOrder) {
  EXPECT_EQ(parameters_.front().name, "embedding.weight");
  int layer = 0;
  for (const ModelParameter& parameter : parameters_) {
    int found = 0;
    if (std::sscanf(parameter.name.c_str(), "layers.%d.", &found) != 1) continue;
    EXPECT_TRUE(found == layer || found == layer + 1) << parameter.name;
    layer = found;
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, DecoderGoldenTest, ::testing::ValuesIn(testing::DenseGoldenFiles()),
                         [](const auto& file) { return file.param; });
INSTANTIATE_TEST_SUITE_P(Moe, DecoderGoldenTest, ::testing::ValuesIn(testing::MoeGoldenFiles()),
                         [](const auto& file) { return file.param; });

TEST(RopeTable, HoldsTheCosinesAndThenTheSinesOfEveryPosition) {
  ModelSpec model;
  model.set_sequence(3);
  model.set_head_dim(4);
  model.set_rope_theta(100);  // frequencies 1 and 1 / 10
  const std::vector<float> table = RopeTable(model, {.sequence = 3});
  ASSERT_EQ(table.size(), 12u);
  for (int t = 0; t < 3; ++t) {
    const float* row = &table[static_cast<size_t>(t) * 4];
    EXPECT_FLOAT_EQ(row[0], static_cast<float>(std::cos(t)));
    EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::cos(t / 10.0)));
    EXPECT_FLOAT_EQ(row[2], static_cast<float>(std::sin(t)));
    EXPECT_FLOAT_EQ(row[3], static_cast<float>(std::sin(t / 10.0)));
  }
}

ModelSpec SmallModel(int64_t vocabulary) {
  ModelSpec model;
  model.set_layers(8);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_kv_heads(4);
  model.set_head_dim(8);
  model.set_ffn(48);
  model.set_sequence(16);
  model.set_vocabulary(vocabulary);
  return model;
}

TEST(StageLayers, CoverTheLayersInOrderAndTheHeadCostsTheLastStageLayers) {
  for (int stages = 1; stages <= 8; ++stages) {
    int64_t next = 0;
    for (const Range& layers : StageLayers(SmallModel(64), stages)) {
      EXPECT_EQ(layers.begin, next);
      EXPECT_GT(layers.size(), 0);
      next = layers.end;
    }
    EXPECT_EQ(next, 8);
  }
  EXPECT_EQ(StageLayers(SmallModel(1), 2)[1].size(), 4);
  // A head of about two layers' cost: 2 V C = 4 layers' half.
  EXPECT_EQ(StageLayers(SmallModel(600), 2)[1].size(), 3);
  EXPECT_EQ(StageLayers(SmallModel(1 << 20), 2)[1].size(), 1);
}

}  // namespace
}  // namespace twinstream
