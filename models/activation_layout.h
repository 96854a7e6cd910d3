// ActivationLayout: where the tensors live that a stage's forward leaves for its backward: in the
// micro-batch's slot, or, where the backward has them again, in scratch that the blocks of the
// stage share.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.h"
#include "models/layer.h"

namespace twinstream {

class ActivationLayout {
 public:
  // The next tensor, of block `block` (ascending). kept: it stays in the slot. Else its memory is
  // another block's too: block b shares with b + 2, b + 4, ...
  struct Entry {
    TensorSpec spec;
    size_t block = 0;
    bool kept = true;
  };
  void Add(Entry entry);
  size_t size() const { return entries_.size(); }

  // What a slot must hold: one spec per entry; entries that live elsewhere have no elements.
  std::vector<TensorSpec> SlotSpecs() const;
  // What View allocates from scratch.
  int64_t ScratchBytes() const;
  // All entries: the slot's, and memory of `scratch` for the others. Valid until the next call.
  Saved View(Saved slot, Scratch& scratch);

 private:
  std::vector<Entry> entries_;
  std::vector<int64_t> offsets_;  // of the entries not kept, in their block's workspace
  std::vector<Tensor> view_;
  size_t block_ = 0;                     // of the last entry
  int64_t block_bytes_ = 0;              // of its entries not kept
  int64_t workspace_bytes_[2] = {0, 0};  // of blocks with even and with odd number
};

}  // namespace twinstream
