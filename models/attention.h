// Attention: causal grouped-query attention with rotary embedding and optional norms of q, k, v per
// head. Tensor parallel by heads; a key/value head is replicated on the ranks that share it when
// there are fewer of them than ranks. Context parallel by RingAttention.
#pragma once

#include "models/context.h"
#include "models/layer.h"
#include "models/ring_attention.h"

namespace twinstream {

class Attention final : public Layer {
 public:
  // qkv_norm: norms of q, k and v; else model.qk_norm decides on q and k.
  Attention(ModelContext& context, int64_t layer, bool qkv_norm);

  std::vector<TensorSpec> SavedSpecs() const override;
  size_t projected() const override { return 1; }
  int64_t ScratchBytes() const override;
  void ProjectIn(Tensor h, Saved saved) override;
  void Core(Saved saved) override;
  void ProjectOut(Tensor o, Saved saved) override;
  void BackwardInput(Tensor d_o, Tensor dh, Saved saved) override;
  void BackwardWeight(Tensor h, Tensor d_o, Saved saved) override;

 private:
  QkvTensors Qkv(Saved saved) const;
  static RingAttentionTensors CoreTensors(Saved saved);

  ModelContext& context_;
  AttentionShape shape_;  // of this rank
  RingAttention core_;
  Parameter* qkv_ = nullptr;
  Parameter* out_ = nullptr;
  Parameter *q_norm_ = nullptr, *k_norm_ = nullptr, *v_norm_ = nullptr;  // null: no such norm
};

}  // namespace twinstream
