#include "tests/testing/upload.h"

#include <algorithm>

namespace twinstream::testing {
namespace {

Tensor Bytes(std::byte* data, int64_t bytes) {
  return {data, DType::kBF16, {bytes / SizeOf(DType::kBF16)}};
}

}  // namespace

void Upload::Add(std::vector<Tensor*> tensors) {
  std::erase_if(tensors, [](const Tensor* t) { return !*t || t->elements() == 0; });
  std::sort(tensors.begin(), tensors.end(),
            [](const Tensor* a, const Tensor* b) { return a->data() < b->data(); });
  for (const Tensor* tensor : tensors) {
    std::byte* const end = tensor->data() + tensor->bytes();
    if (!pieces_.empty() && tensor->data() < pieces_.back().end) {
      pieces_.back().end = std::max(pieces_.back().end, end);
    } else {
      pieces_.push_back({tensor->data(), end, {}});
    }
  }
  for (Piece& piece : pieces_) {
    const int64_t bytes = piece.end - piece.begin;
    piece.storage = Storage(device_, piece.offset() + bytes);
    device_.CopyIn(Bytes(piece.data(), bytes), piece.begin);
  }
  for (Tensor* tensor : tensors) {
    for (const Piece& piece : pieces_) {
      if (tensor->data() < piece.begin || tensor->data() >= piece.end) continue;
      *tensor =
          Tensor(piece.data() + (tensor->data() - piece.begin), tensor->dtype(), tensor->shape());
      break;
    }
  }
}

Upload::~Upload() {
  if (!is_back_) CopyBack();
}

void Upload::CopyBack() {
  for (const Piece& piece : pieces_) {
    device_.CopyOut(piece.begin, Bytes(piece.data(), piece.end - piece.begin));
  }
  is_back_ = true;
}

}  // namespace twinstream::testing
