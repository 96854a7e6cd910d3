#include "launch/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace twinstream {
namespace {

// Share of peak_lr after warm-up; 0 < progress <= 1 from its end to the last update.
double Share(const OptimizerSpec& optimizer, double progress, double updates_left,
             double total_updates) {
  const double lowest = optimizer.final_fraction();
  switch (optimizer.schedule()) {
    case OptimizerSpec::CONSTANT:
      return 1;
    case OptimizerSpec::LINEAR:
      return 1 - (1 - lowest) * progress;
    case OptimizerSpec::COSINE:
      return lowest + (1 - lowest) * 0.5 * (1 + std::cos(M_PI * progress));
    case OptimizerSpec::WSD: {
      const double decay_updates = optimizer.decay_fraction() * total_updates;
      if (updates_left >= decay_updates) return 1;
      return lowest + (1 - lowest) * updates_left / decay_updates;
    }
  }
  Die("unknown learning-rate schedule");
}

}  // namespace

double LearningRate(const OptimizerSpec& optimizer, int64_t update, int64_t steps) {
  Check(1 <= update && update <= steps, "learning rate of update %d of %d", update, steps);
  const int64_t warmup = optimizer.warmup_steps();
  if (update <= warmup) {
    return optimizer.peak_lr() * static_cast<double>(update) / static_cast<double>(warmup);
  }
  const double progress =
      static_cast<double>(update - warmup) / static_cast<double>(steps - warmup);
  return optimizer.peak_lr() * Share(optimizer, progress, static_cast<double>(steps - update),
                                     static_cast<double>(steps));
}

}  // namespace twinstream
