#include "core/threads.h"

#include <omp.h>

namespace twinstream {

void ComputeOnOneThread() { omp_set_num_threads(1); }

}  // namespace twinstream
