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
  CopyBox(piece.box, Box::Whole(piece.global), reinterpret_cast<const std::byte*>(whole.data()),
          piece.box, piece.data.data(), sizeof(float));
}

}  // namespace twinstream::testing
