// validate: everything that can be known about a job before it is run.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace twinstream {

// Reads the job, applies the rules of job_rules.h and looks at the files it names: token files are
// opened and searched for tokens outside the vocabulary. Prints a summary when all is well.
// `ranks`: how many will run; 0: unknown. InvalidArgument with every mistake, one a line; NotFound
// when there is no job file. Needs no MPI and looks at nothing of this host but the files.
absl::Status CommandValidate(const std::string& job_path, const std::vector<std::string>& overrides,
                             int ranks);

}  // namespace twinstream
