// Ranks' pieces put together into whole tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/device.h"
#include "parallel/box.h"

namespace twinstream::testing {

using WholeTensors = std::map<std::string, std::vector<float>>;  // row-major, by name

// Copies the pieces (f32, of the device) to their places in the whole tensors; what no piece has
// covered yet is NaN.
void Collect(const std::vector<Piece>& pieces, Device& device, WholeTensors* wholes);

// Copies a piece (f32, or bf16: rounded; of the device) out of its whole tensor.
void FillFrom(const std::vector<float>& whole, const Piece& piece, Device& device);

}  // namespace twinstream::testing
