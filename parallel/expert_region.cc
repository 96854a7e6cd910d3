#include "parallel/expert_region.h"

#include "core/check.h"

namespace twinstream {

void ExpertRegion::Exchange(Tensor out, RowParts out_parts, Tensor in, RowParts in_parts) const {
  Check(experts_ != nullptr, "a lone rank has nobody to exchange tokens with");
  experts_->AllToAll(out, out_parts, in, in_parts);
}

void ExpertRegion::SumOverTokens(Tensor statistics) const {
  if (replicas_ != nullptr) replicas_->AllReduce(statistics, Reduction::kSum);
}

}  // namespace twinstream
