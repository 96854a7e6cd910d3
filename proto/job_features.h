// What job.proto already speaks of and the program does not do yet.
#pragma once

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace twinstream {

// One message per field that asks for something not built yet: path, value, remedy.
std::vector<std::string> FeaturesNotBuilt(const JobSpec& job);

}  // namespace twinstream
