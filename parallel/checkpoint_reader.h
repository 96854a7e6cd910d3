// CheckpointReader: one step directory, read tensor by tensor. Every stored box that is touched is
// checked against its digest first.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/file.h"
#include "parallel/box.h"
#include "parallel/checkpoint_plan.h"
#include "proto/checkpoint.pb.h"

namespace twinstream {

// The manifest of a step directory, its own digest and CheckManifest passed. DATA_LOSS: there is
// none, or it is damaged; FAILED_PRECONDITION: another version of the program wrote it.
absl::StatusOr<Manifest> ReadManifest(const std::string& step_directory);
// One of its shards, mapped in full size. DATA_LOSS: there is none, or one of another size; other
// errors: it cannot be read.
absl::StatusOr<MappedFile> OpenShard(const std::string& step_directory, const ShardFile& shard);
// The manifest's text, digest included; what ReadManifest reads.
std::string ManifestText(Manifest manifest);

// The name of a model's tensor; false for the optimizer's "adam_m." and "adam_v.".
bool IsModelTensor(absl::string_view name);

class CheckpointReader {
 public:
  // Opens no shard yet. Errors of ReadManifest.
  static absl::StatusOr<CheckpointReader> Open(const std::string& step_directory);

  const std::string& step_directory() const { return step_directory_; }
  const Manifest& manifest() const { return manifest_; }

  // Fills `to` (host memory, row-major) with box `needed` of the tensor. Errors of OpenShard, and
  // DATA_LOSS when a digest does not match; both name file, tensor and box.
  absl::Status Read(const StoredTensor& tensor, const Box& needed, absl::Span<std::byte> to);
  // The digest of one box; errors of Read.
  absl::Status Verify(const StoredTensor& tensor, const StoredBox& box);

 private:
  CheckpointReader(std::string step_directory, Manifest manifest);
  // The verified bytes of a stored box.
  absl::StatusOr<const std::byte*> Fetch(const StoredTensor& tensor, const StoredBox& stored);

  std::string step_directory_;
  Manifest manifest_;
  std::vector<std::unique_ptr<MappedFile>> files_;  // of manifest_.file(); null: not yet opened
  std::set<const StoredBox*> verified_;
};

}  // namespace twinstream
