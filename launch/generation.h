// Text from a trained model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "launch/trainer.h"

namespace twinstream {

struct GenerationOptions {
  int64_t tokens = 0;      // to add
  double temperature = 0;  // 0: always the likeliest token
  uint64_t seed = 0;
  int64_t ids = std::numeric_limits<int64_t>::max();  // only ids below it are chosen
};

// Continues `prompt` (token ids, not empty). Where prompt and continuation outgrow the model's
// sequence, it sees the latest ones. Every rank calls it and gets the same tokens; the choice
// depends on (seed, position) alone. `each` is told every new token as it comes.
std::vector<int32_t> Generate(Trainer& trainer, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& each);

// A token drawn from softmax(logits / temperature) by `uniform` in [0, 1); the likeliest for
// temperature 0.
int32_t SampleToken(const std::vector<float>& logits, double temperature, double uniform);

}  // namespace twinstream
