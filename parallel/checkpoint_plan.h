// What a checkpoint's manifest must say, and which stored boxes a tensor is read from. Pure: no
// file is touched.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "parallel/box.h"
#include "proto/checkpoint.pb.h"

namespace twinstream {

Box BoxOf(const StoredBox& stored);         // at most four dimensions, CheckManifest sees to it
Shape ShapeOf(const StoredTensor& stored);  // global
absl::StatusOr<DType> DTypeNamed(const std::string& name);

// The manifest of one rank's shard: one file with these pieces in order, empty ones left out.
// Offsets, digests and the file's size are left to the writer.
Manifest DescribeShard(const std::string& file_name, absl::Span<const Piece> owned);

// All ranks' shards as one manifest: files in rank order, tensors sorted by name.
// FAILED_PRECONDITION names the tensor whose shape differs between ranks, and what CheckManifest
// finds.
absl::StatusOr<Manifest> MergeShards(absl::Span<const Manifest> shards);

// DATA_LOSS unless names are sorted and unique, every box lies inside its tensor and its file, and
// every element of every tensor is stored exactly once; names the tensor and the box that is
// missing or doubled.
absl::Status CheckManifest(const Manifest& manifest);

// One stored box that holds a part of what is needed.
struct BoxRead {
  const StoredBox* stored;  // in the manifest
  Box box;                  // of `stored`
  Box common;               // the part of it that is needed
};
// The reads that fill box `needed` of a tensor that CheckManifest found complete.
std::vector<BoxRead> PlanReads(const StoredTensor& tensor, const Box& needed);

// nullptr if there is none. Names are sorted.
const StoredTensor* FindTensor(const Manifest& manifest, const std::string& name);

}  // namespace twinstream
