#include "tests/testing/whole_tensors.h"

#include <cmath>

namespace twinstream::testing {

void Collect(const std::vector<Piece>& pieces, Device& device, WholeTensors* wholes) {
  for (const Piece& piece : pieces) {
    std::vector<float>& whole = (*wholes)[piece.name];
    whole.resize(static_cast<size_t>(piece.global.elements()), std::nanf(""));
    std::vector<float> part(static_cast<size_t>(piece.box.elements()));
    Check(piece.data.dtype() == DType::kF32, "piece %s is not float32", piece.name);
    device.CopyOut(part.data(), piece.data);
    CopyBox(piece.box, piece.box, reinterpret_cast<const std::byte*>(part.data()),
            Box::Whole(piece.global), reinterpret_cast<std::byte*>(whole.data()), sizeof(float));
  }
}

void FillFrom(const std::vector<float>& whole, const Piece& piece, Device& device) {
  Check(static_cast<int64_t>(whole.size()) == piece.global.elements(), "%d values for %s",
        whole.size(), piece.name);
  std::vector<float> part(static_cast<size_t>(piece.box.elements()));
  CopyBox(piece.box, Box::Whole(piece.global), reinterpret_cast<const std::byte*>(whole.data()),
          piece.box, reinterpret_cast<std::byte*>(part.data()), sizeof(float));
  CopyInRounded(device, piece.data, part);
}

}  // namespace twinstream::testing
