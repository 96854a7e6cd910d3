// Checkpoints: every rank writes one safetensors shard, rank 0 the manifest; whole or not there at
// all. Any layout loads any layout.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/device.h"
#include "parallel/box.h"
#include "parallel/communicator.h"
#include "proto/job.pb.h"

namespace twinstream {

// What the manifest says besides the tensors. Only rank 0's counts.
struct SaveRequest {
  int64_t step = 0;         // updates done
  int64_t next_sample = 0;  // global position of the next training sequence
  int64_t tokens = 0;       // trained on so far
  JobSpec job;              // as it was really run
  std::string layout;       // GridShape::ToString()
  std::string program;      // "twinstream 0.1.0"
};

// Writes directory/step_%09d and then `latest`. Collective. Over all ranks, `owned` must hold each
// element of each tensor exactly once (empty pieces are fine). A step directory of the same step is
// replaced. When it fails, for whatever rank, every rank gets the same status, and no step
// directory has come into being or changed. `directory` must be the same place for all ranks.
absl::Status SaveCheckpoint(const std::string& directory, const SaveRequest& request,
                            absl::Span<const Piece> owned, Device& device, Communicator& world);

// Fills all needed pieces; a bf16 piece takes the rounded values of a float32 tensor. Local to the
// rank: reads the boxes that it needs, checks their digests. Errors: of ReadManifest;
// FAILED_PRECONDITION names a tensor that is missing, has another shape or dtype, or is neither
// needed nor `known_elsewhere` (other ranks' tensors, or what the caller does not want); DATA_LOSS
// names file, tensor and box. After an error the pieces are undefined.
absl::Status LoadCheckpoint(const std::string& step_directory, absl::Span<const Piece> needed,
                            absl::FunctionRef<bool(absl::string_view name)> known_elsewhere,
                            Device& device);

// Compares every digest; each rank reads some of the shards. Errors: of ReadManifest and OpenShard;
// DATA_LOSS names file, tensor and box. Collective; the same status everywhere.
absl::Status VerifyCheckpoint(const std::string& step_directory, Communicator& world);

}  // namespace twinstream
