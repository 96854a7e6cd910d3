#include "launch/generation.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace twinstream {
namespace {

// In [0, 1), from 53 of the bits that belong to (seed, position).
double Uniform(uint64_t seed, uint64_t position) {
  const PhiloxBlock bits =
      Philox({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}},
             {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}});
  const uint64_t word = (uint64_t{bits.words[0]} << 32) | bits.words[1];
  return static_cast<double>(word >> 11) * 0x1p-53;
}

}  // namespace

int32_t SampleToken(const std::vector<float>& logits, double temperature, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(likeliest - logits.begin());
  std::vector<double> cumulative;
  double sum = 0;
  for (float logit : logits) {
    sum += std::exp((static_cast<double>(logit) - static_cast<double>(*likeliest)) / temperature);
    cumulative.push_back(sum);
  }
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum);
  return static_cast<int32_t>(
      std::min<int64_t>(chosen - cumulative.begin(), static_cast<int64_t>(logits.size()) - 1));
}

std::vector<int32_t> Generate(Trainer& trainer, const std::vector<int32_t>& prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& each) {
  Check(!prompt.empty(), "a prompt has at least one token");
  const size_t T = static_cast<size_t>(trainer.job().model().sequence());
  std::vector<int32_t> tokens = prompt;
  for (int64_t i = 0; i < options.tokens; ++i) {
    // The model is causal: what stands after the last token is never seen.
    const size_t seen = std::min(tokens.size(), T);
    std::vector<int32_t> window(T);
    std::copy(tokens.end() - static_cast<int64_t>(seen), tokens.end(), window.begin());
    std::vector<float> logits = trainer.NextTokenLogits(window, static_cast<int64_t>(seen) - 1);
    logits.resize(std::min(logits.size(), static_cast<size_t>(options.ids)));
    tokens.push_back(
        SampleToken(logits, options.temperature, Uniform(options.seed, static_cast<uint64_t>(i))));
    each(tokens.back());
  }
  return tokens;
}

}  // namespace twinstream
