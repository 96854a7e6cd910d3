#include "parallel/tensor_region.h"

namespace twinstream {

Range TensorRegion::OwnRows(int64_t rows) const {
  return shards_tokens() ? SplitEvenly(rows, size(), rank()) : Range{0, rows};
}

Tensor TensorRegion::Own(Tensor full) const {
  const Range rows = OwnRows(full.dim(0));
  return full.Rows(rows.begin, rows.end);
}

void TensorRegion::Enter(Tensor h) const { GatherRows(h); }
void TensorRegion::EnterBackward(Tensor dh) const { SumParts(dh); }
void TensorRegion::Leave(Tensor o) const { SumParts(o); }
void TensorRegion::LeaveBackward(Tensor d_o) const { GatherRows(d_o); }

void TensorRegion::Gather(Tensor inout, absl::Span<const int64_t> counts) const {
  if (size() > 1) tensor_->AllGather(inout, counts);
}

void TensorRegion::GatherRows(Tensor full) const {
  if (shards_tokens()) tensor_->AllGather(full, ElementCounts(full));
}

void TensorRegion::SumParts(Tensor full) const {
  if (size() == 1) return;
  if (shards_tokens()) {
    tensor_->ReduceScatter(full, ElementCounts(full));
  } else {
    tensor_->AllReduce(full, Reduction::kSum);
  }
}

PieceCounts TensorRegion::ElementCounts(Tensor full) const {
  const int64_t rows = full.dim(0);
  PieceCounts counts;
  for (int r = 0; r < size(); ++r)
    counts.push_back(SplitEvenly(rows, size(), r).size() * (full.elements() / rows));
  return counts;
}

}  // namespace twinstream
