#include "models/flops.h"

#include <string>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace twinstream {
namespace {

struct Sizes {
  int64_t hidden, layers, heads, ffn;
};

ModelSpec Model(Sizes sizes) {
  ModelSpec model;
  model.set_hidden(sizes.hidden);
  model.set_layers(sizes.layers);
  model.set_heads(sizes.heads);
  model.set_kv_heads(sizes.heads);
  model.set_head_dim(sizes.hidden / sizes.heads);
  model.set_ffn(sizes.ffn);
  model.set_vocabulary(50304);
  model.set_sequence(2048);
  return model;
}

ModelSpec Moe15B() {
  ModelSpec model = Model({2048, 28, 16, 1280});
  model.mutable_moe()->set_experts(64);
  model.mutable_moe()->set_top_k(8);
  return model;
}

std::string Billions(int64_t parameters, int digits) {
  return absl::StrFormat("%.*f", digits, static_cast<double>(parameters) * 1e-9);
}

TEST(Flops, PublishedSizesHaveThePublishedParameterCounts) {
  EXPECT_EQ(Billions(MatrixParameters(Model({1024, 17, 16, 4096})), 3), "0.388");
  ModelSpec model = Model({2048, 16, 16, 8192});
  EXPECT_EQ(Billions(MatrixParameters(model), 2), "1.28");
  model.set_tied_embeddings(true);
  EXPECT_EQ(Billions(MatrixParameters(model), 2), "1.18");
  EXPECT_EQ(Billions(MatrixParameters(Moe15B()), 2), "14.77");
  EXPECT_EQ(Billions(ActiveMatrixParameters(Moe15B()), 2), "2.44");
  EXPECT_EQ(Billions(MatrixParameters(Model({4096, 32, 32, 11008})), 2), "6.89");
  EXPECT_EQ(Billions(MatrixParameters(Model({5120, 40, 40, 13824})), 2), "13.20");
}

// Every number different and small, counted by hand from the table of tensors.
TEST(Flops, GroupedQueriesAndOddWidthsAreCountedExactly) {
  ModelSpec model = Model({10, 3, 4, 7});
  model.set_kv_heads(2);
  model.set_head_dim(6);  // heads x head_dim = 24, not hidden
  model.set_vocabulary(11);
  model.set_sequence(5);
  const int64_t hidden = 10, heads = int64_t{4} * 6, head = 11 * hidden;
  const int64_t qkv = hidden * (4 + 2 * 2) * 6, out = hidden * heads, up = hidden * 2 * 7,
                down = hidden * 7;
  const int64_t layer = qkv + out + up + down;
  EXPECT_EQ(MatrixParameters(model), 3 * layer + 2 * head);
  EXPECT_EQ(ActiveMatrixParameters(model), MatrixParameters(model));
  EXPECT_EQ(TrainingFlopsPerToken(model), 6 * (3 * layer + head) + heads * 12 * 3 * 5);
  EXPECT_EQ(LayerForwardFlops(model), 2 * layer + 4 * heads * 5);
  EXPECT_EQ(HeadForwardFlops(model), 2 * head);

  model.set_tied_embeddings(true);  // one matrix less, the same work
  EXPECT_EQ(MatrixParameters(model), 3 * layer + head);
  EXPECT_EQ(TrainingFlopsPerToken(model), 6 * (3 * layer + head) + heads * 12 * 3 * 5);

  model.mutable_moe()->set_experts(9);
  model.mutable_moe()->set_top_k(2);
  const int64_t router = 9 * hidden;
  EXPECT_EQ(MatrixParameters(model), 3 * (qkv + out + router + 9 * (up + down)) + head);
  EXPECT_EQ(ActiveMatrixParameters(model), 3 * (qkv + out + router + 2 * (up + down)) + head);
  EXPECT_EQ(LayerForwardFlops(model), 2 * (qkv + out + router + 2 * (up + down)) + 4 * heads * 5);
}

TEST(Flops, ThirteenBillionParametersDoNotOverflow) {
  const ModelSpec model = Model({5120, 40, 40, 13824});
  const double without_embedding = static_cast<double>(MatrixParameters(model)) - 50304.0 * 5120;
  EXPECT_EQ(TrainingFlopsPerToken(model), 6 * without_embedding + 12.0 * 40 * 5120 * 2048);
}

}  // namespace
}  // namespace twinstream
