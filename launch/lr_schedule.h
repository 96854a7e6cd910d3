// Learning rate as a pure function of the update's number: nothing to save, nothing to restore.
#pragma once

#include <cstdint>

#include "proto/job.pb.h"

namespace twinstream {

// Of update 1 .. steps. Warm-up: linear from 0 to peak_lr at update warmup_steps. Then COSINE and
// LINEAR fall to final_fraction x peak_lr at the last update; CONSTANT stays; WSD stays, and falls
// linearly over the last decay_fraction x steps updates.
double LearningRate(const OptimizerSpec& optimizer, int64_t update, int64_t steps);

}  // namespace twinstream
