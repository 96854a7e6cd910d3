#include "tests/testing/whole_tensors.h"

#include <cmath>

namespace twinstream::testing {

void Collect(const std::vector<Piece>& pieces, WholeTensors* wholes) {
  for (const Piece& piece : pieces) {
    std::vector<float>& whole = (*wholes)[piece.name];
    whole.resize(static_cast<size_t>(piece.global.elements()), std::nanf(""));
    CopyBox(piece.box, piece.box, piece.data.data(), Box::Whole(piece.global),
            reinterpret_cast<std::byte*>(whole.data()), sizeof(float));
  }
}

void FillFrom(const std::vector<float>& whole, const Piece& piece) {
  Check(static_cast<int64_t>(whole.size()) == piece.global.elements(), "%d values for %s",
        whole.size(), piece.name);
  std::vector<float> part(static_cast<size_t>(piece.box.elements()));
  CopyBox(piece.box, Box::Whole(piece.global), reinterpret_cast<const std::byte*>(whole.data()),
          piece.box, reinterpret_cast<std::byte*>(part.data()), sizeof(float));
  for (size_t i = 0; i < part.size(); ++i) {
    if (piece.data.dtype() == DType::kBF16) {
      piece.data.As<BFloat16>()[i] = part[i];
    } else {
      piece.data.As<float>()[i] = part[i];
    }
  }
}

}  // namespace twinstream::testing
