// Rules for the job's texts: its name and the paths.
#pragma once

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace twinstream {

// One line for every text with a control character (no path can hold a zero byte, and a line break
// would tear messages apart), for a name that would lead out of the directory runs/, and for a name
// or directory that no file system takes. The name may have slashes.
std::vector<std::string> TextProblems(const JobSpec& job);

// One line if one of checkpoint.directory and metrics.directory lies where the run puts a file or a
// checkpoint of the other. `job` is resolved.
std::vector<std::string> PlaceProblems(const JobSpec& job);

}  // namespace twinstream
