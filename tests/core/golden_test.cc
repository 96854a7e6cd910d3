#include "tests/testing/golden.h"

#include "gtest/gtest.h"

namespace twinstream {
namespace {

TEST(GoldenTest, TensorsTokensAndMetadataAreThereInTheirShapes) {
  const testing::Golden golden("lm_siamese_hybrid_pre");
  EXPECT_EQ(golden.Metadata("scheme"), "SIAMESE_HYBRID_PRE");
  const int64_t hidden = golden.Integer("dim");
  const int64_t vocabulary = golden.Integer("vocab");
  EXPECT_EQ(golden.Real("eps"), 1e-5);
  EXPECT_EQ(golden.ShapeOf("param.embedding.weight"), (Shape{vocabulary, hidden}));
  EXPECT_EQ(static_cast<int64_t>(golden.Floats("param.embedding.weight").size()),
            vocabulary * hidden);
  EXPECT_EQ(golden.Names("param").size(), golden.Names("grad").size());
  EXPECT_EQ(golden.Names("param")[0], "embedding.weight");
  EXPECT_GT(golden.Scalar("loss"), 3);
  for (int32_t token : golden.Tokens()) {
    EXPECT_TRUE(token >= 0 && token < vocabulary) << token;
  }
}

}  // namespace
}  // namespace twinstream
