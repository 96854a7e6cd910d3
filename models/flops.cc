#include "models/flops.h"

#include "core/check.h"

namespace twinstream {
namespace {

int64_t AttentionParameters(const ModelSpec& model) {
  Check(model.has_kv_heads() && model.has_head_dim(), "the model spec is not resolved");
  const int64_t projected_heads = 2 * model.heads() + 2 * model.kv_heads();  // q and out; k and v
  return projected_heads * model.head_dim() * model.hidden();
}

// One gated MLP, or one expert: value, gate, down.
int64_t MlpParameters(const ModelSpec& model) { return 3 * model.ffn() * model.hidden(); }

// `experts`: how many of an MoE layer's to count.
int64_t LayerParameters(const ModelSpec& model, int64_t experts) {
  if (!model.has_moe()) return AttentionParameters(model) + MlpParameters(model);
  const int64_t router = model.moe().experts() * model.hidden();
  return AttentionParameters(model) + router + experts * MlpParameters(model);
}

int64_t EmbeddingParameters(const ModelSpec& model) { return model.vocabulary() * model.hidden(); }

int64_t AllParameters(const ModelSpec& model, int64_t experts) {
  const int64_t ends = model.tied_embeddings() ? 1 : 2;  // embedding, head
  return model.layers() * LayerParameters(model, experts) + ends * EmbeddingParameters(model);
}

}  // namespace

int64_t MatrixParameters(const ModelSpec& model) {
  return AllParameters(model, model.moe().experts());
}

int64_t ActiveMatrixParameters(const ModelSpec& model) {
  return AllParameters(model, model.moe().top_k());
}

double LayerForwardFlops(const ModelSpec& model) {
  const int64_t matrices = 2 * LayerParameters(model, model.moe().top_k());
  // Scores and their product with the values: 2 d_attn T each.
  const int64_t attention = 4 * model.heads() * model.head_dim() * model.sequence();
  return static_cast<double>(matrices + attention);
}

double HeadForwardFlops(const ModelSpec& model) {
  return static_cast<double>(2 * EmbeddingParameters(model));
}

double TrainingFlopsPerToken(const ModelSpec& model) {
  const double forward =
      static_cast<double>(model.layers()) * LayerForwardFlops(model) + HeadForwardFlops(model);
  return 3 * forward;  // backward: once for the inputs, once for the weights
}

}  // namespace twinstream
