// ResidualSite's place in a network: the row-local work between two residual blocks (core/ops.h),
// with its parameters and the tensors that it stores. docs/residual.md shows the equations beside
// the fields.
#pragma once

#include <vector>

#include "models/context.h"
#include "models/residual_plan.h"

namespace twinstream {

// What one site stores for one micro-batch: streams as the write left them [n, C] (n: this rank's
// rows between blocks), the norms' scales, and the next block's input [N, C] of which the own rows
// are written here.
struct SiteTensors {
  Tensor x, y;    // y absent in one-stream schemes
  Tensor scales;  // absent where this site takes no norm
  Tensor h;       // absent where no block follows on this stage
  Tensor o;       // [n, C] output of the block before, kept where the write norms it
};

class StreamSite {
 public:
  // `before`: the site whose read fed the block that writes here, null where a stage starts;
  // `write`: of that block. `read`: what follows, null where a stage ends. Declares the weights of
  // both. `before` outlives this.
  StreamSite(ModelContext& context, const StreamSite* before, const WriteRule* write,
             const ReadRule* read);

  // What SiteTensors hold here besides the streams between layers.
  bool sets_y() const { return has_write_ && write_.y == ResidualWrite::Y::kSet; }
  bool keeps_scales() const { return has_read_ || keeps_output(); }
  bool keeps_output() const { return has_write_ && write_.output_norm; }

  // o: [n, C] output of the block before. here.x, here.y are given where a stage starts, else
  // written.
  void Forward(const SiteTensors& before, Tensor o, const SiteTensors& here) const;
  // Computes scales and h again from the streams that Forward stored.
  void ReadAgain(const SiteTensors& here) const;
  // dx, dy: as in ResidualBackwardTensors, in place. dh: [n, C]. d_o: [n, C], written where there
  // is a write. h: [n, C] or absent: the next block's input again, written; may be here.y.
  void Backward(Tensor dx, Tensor dy, Tensor dh, const SiteTensors& here, Tensor d_o,
                Tensor h) const;

 private:
  ResidualSite Rule() const;
  ResidualForwardTensors ReadTensors(const SiteTensors& here) const;

  ModelContext& context_;
  const StreamSite* before_;
  bool has_write_ = false, has_read_ = false;
  ResidualWrite write_;
  ResidualRead read_;
  Parameter *x_weight_ = nullptr, *y_weight_ = nullptr, *input_weight_ = nullptr,
            *output_weight_ = nullptr;
};

}  // namespace twinstream
