#include "models/activation_layout.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace twinstream {

void ActivationLayout::Add(Entry entry) {
  Check(entry.block >= block_, "tensor %s of block %d comes after one of block %d", entry.spec.name,
        entry.block, block_);
  if (entry.block != block_) block_bytes_ = 0;
  block_ = entry.block;
  offsets_.push_back(block_bytes_);
  if (!entry.kept) {
    block_bytes_ += BytesFor({entry.spec});
    int64_t& workspace = workspace_bytes_[block_ % 2];
    workspace = std::max(workspace, block_bytes_);
  }
  entries_.push_back(std::move(entry));
  view_.emplace_back();
}

std::vector<TensorSpec> ActivationLayout::SlotSpecs() const {
  std::vector<TensorSpec> specs;
  for (const Entry& entry : entries_) {
    specs.push_back(entry.kept ? entry.spec : TensorSpec{entry.spec.name, entry.spec.dtype, {0}});
  }
  return specs;
}

int64_t ActivationLayout::ScratchBytes() const { return workspace_bytes_[0] + workspace_bytes_[1]; }

Saved ActivationLayout::View(Saved slot, Scratch& scratch) {
  const auto allocate = [&](int64_t bytes) {
    return scratch.Allocate(DType::kI32, {bytes / SizeOf(DType::kI32)}).data();
  };
  std::byte* const workspaces[2] = {allocate(workspace_bytes_[0]), allocate(workspace_bytes_[1])};
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& [spec, block, kept] = entries_[i];
    view_[i] = kept ? slot[i] : Tensor(workspaces[block % 2] + offsets_[i], spec.dtype, spec.shape);
  }
  return view_;
}

}  // namespace twinstream
