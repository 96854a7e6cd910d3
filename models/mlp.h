// Mlp: SwiGLU feed-forward, down(silu(gate) . value). Tensor parallel by columns of the inner
// width; any width divides.
#pragma once

#include "models/context.h"
#include "models/layer.h"

namespace twinstream {

class Mlp final : public Layer {
 public:
  Mlp(ModelContext& context, int64_t layer);

  std::vector<TensorSpec> SavedSpecs() const override;
  size_t projected() const override { return 1; }
  int64_t ScratchBytes() const override;
  void ProjectIn(Tensor h, Saved saved) override;
  void Core(Saved saved) override;
  void ProjectOut(Tensor o, Saved saved) override;
  void BackwardInput(Tensor d_o, Tensor dh, Saved saved) override;
  void BackwardWeight(Tensor h, Tensor d_o, Saved saved) override;

 private:
  ModelContext& context_;
  int64_t width_;  // F of this rank
  Parameter* up_;
  Parameter* down_;
};

}  // namespace twinstream
