#include "parallel/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/crc32c.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "parallel/checkpoint_directory.h"
#include "parallel/checkpoint_plan.h"
#include "parallel/checkpoint_reader.h"
#include "parallel/collectives.h"

namespace twinstream {
namespace {

// An empty `temporary`, and nothing left of saves that were cut short.
absl::Status Prepare(const std::string& directory, const std::string& temporary) {
  if (absl::Status s = MakeDirectories(directory); !s.ok()) return s;
  if (absl::Status s = RemoveLeftovers(directory); !s.ok()) return s;
  return MakeDirectories(temporary);
}

// The stored boxes of the pieces that are not empty, in their order.
std::vector<StoredBox*> BoxesOf(absl::Span<const Piece* const> pieces, Manifest& shard) {
  std::map<std::string, StoredTensor*> tensors;
  for (StoredTensor& tensor : *shard.mutable_tensor()) tensors[tensor.name()] = &tensor;
  std::map<std::string, int> next;
  std::vector<StoredBox*> boxes;
  for (const Piece* piece : pieces) {
    boxes.push_back(tensors.at(piece->name)->mutable_box(next[piece->name]++));
  }
  return boxes;
}

// Writes this rank's shard and brings it to disk; returns its part of the manifest.
absl::StatusOr<Manifest> WriteShard(const std::string& temporary, int rank,
                                    absl::Span<const Piece> owned, Device& device) {
  const std::string name = absl::StrFormat("shard_%05d.safetensors", rank);
  Manifest shard = DescribeShard(name, owned);
  std::vector<const Piece*> pieces;
  for (const Piece& piece : owned) {
    if (piece.box.elements() > 0) pieces.push_back(&piece);
  }
  const std::vector<StoredBox*> boxes = BoxesOf(pieces, shard);
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    specs.push_back({boxes[i]->entry(), pieces[i]->data.dtype(), pieces[i]->box.extent});
  }
  const std::string path = absl::StrCat(temporary, "/", name);
  absl::StatusOr<SafetensorsWriter> writer = SafetensorsWriter::Create(path, specs, {});
  if (absl::IsNotFound(writer.status())) {
    return absl::NotFoundError(
        absl::StrCat(writer.status().message(),
                     ": checkpoint.directory must be on a file system that all hosts share"));
  }
  if (!writer.ok()) return writer.status();
  std::vector<std::byte> host;
  for (size_t i = 0; i < pieces.size(); ++i) {
    host.resize(static_cast<size_t>(pieces[i]->data.bytes()));
    device.CopyOut(host.data(), pieces[i]->data);
    boxes[i]->set_offset(writer->offset(i));
    boxes[i]->set_crc32c(ExtendCrc32c(0, host));
    if (absl::Status s = writer->Append(host); !s.ok()) return s;
  }
  if (absl::Status s = writer->Finish(); !s.ok()) return s;
  shard.mutable_file(0)->set_bytes(writer->file_bytes());
  return shard;
}

// Rank 0, after all shards are on disk: the manifest, the rename, `latest`.
absl::Status Commit(const std::string& directory, const std::string& temporary,
                    const SaveRequest& request, const std::vector<std::string>& shard_texts) {
  std::vector<Manifest> shards(shard_texts.size());
  for (size_t r = 0; r < shards.size(); ++r) {
    Check(shards[r].ParseFromString(shard_texts[r]), "rank %d sent no shard description", r);
  }
  absl::StatusOr<Manifest> manifest = MergeShards(shards);
  if (!manifest.ok()) return manifest.status();
  manifest->set_step(request.step);
  manifest->set_next_sample(request.next_sample);
  manifest->set_tokens(request.tokens);
  *manifest->mutable_job() = request.job;
  manifest->set_layout(request.layout);
  manifest->set_program(request.program);
  if (absl::Status s = ReplaceFile(absl::StrCat(temporary, "/manifest.textproto"),
                                   ManifestText(*std::move(manifest)));
      !s.ok()) {
    return s;
  }
  const std::string name = StepName(request.step);
  if (absl::Status s = ReplaceDirectory(temporary, absl::StrCat(directory, "/", name)); !s.ok()) {
    return s;
  }
  return ReplaceFile(absl::StrCat(directory, "/latest"), absl::StrCat(name, "\n"));
}

absl::Status CheckNeeded(const Piece& piece, const StoredTensor* tensor) {
  if (tensor == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor ", piece.name, " of this model is not in the checkpoint"));
  }
  const DType dtype = piece.data.dtype();
  // A copy to compute with is rounded from the float32 that is saved.
  const bool rounds = dtype == DType::kBF16 && tensor->dtype() == NameOf(DType::kF32);
  if (ShapeOf(*tensor) != piece.global || (tensor->dtype() != NameOf(dtype) && !rounds)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor ", piece.name, " is ", tensor->dtype(), " ", ShapeOf(*tensor).ToString(),
        " in the checkpoint and ", NameOf(dtype), " ", piece.global.ToString(), " in this model"));
  }
  return absl::OkStatus();
}

// Every stored tensor is wanted by somebody, every needed one is stored in its shape.
absl::Status CheckNames(const Manifest& manifest, absl::Span<const Piece> needed,
                        absl::FunctionRef<bool(absl::string_view)> known_elsewhere) {
  std::set<std::string> names;
  for (const Piece& piece : needed) {
    names.insert(piece.name);
    if (absl::Status s = CheckNeeded(piece, FindTensor(manifest, piece.name)); !s.ok()) return s;
  }
  for (const StoredTensor& tensor : manifest.tensor()) {
    if (names.count(tensor.name()) == 0 && !known_elsewhere(tensor.name())) {
      return absl::FailedPreconditionError(
          absl::StrCat("tensor ", tensor.name(), " of the checkpoint is not in this model"));
    }
  }
  return absl::OkStatus();
}

// One piece from where it is stored. host: memory to use again.
absl::Status LoadPiece(CheckpointReader& reader, const Piece& piece, std::vector<std::byte>& host,
                       Device& device) {
  const StoredTensor& tensor = *FindTensor(reader.manifest(), piece.name);
  const bool rounds = tensor.dtype() != NameOf(piece.data.dtype());
  const DType stored = rounds ? DType::kF32 : piece.data.dtype();
  host.resize(static_cast<size_t>(piece.data.elements() * SizeOf(stored)));
  if (absl::Status s = reader.Read(tensor, piece.box, absl::MakeSpan(host)); !s.ok()) return s;
  if (rounds) {
    CopyInRounded(device, piece.data, ToFloats(NameOf(stored), host));
  } else {
    device.CopyIn(piece.data, host.data());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveCheckpoint(const std::string& directory, const SaveRequest& request,
                            absl::Span<const Piece> owned, Device& device, Communicator& world) {
  const bool first = world.rank() == 0;
  const std::string temporary = absl::StrCat(directory, "/.tmp_", StepName(request.step));
  absl::Status status = first ? Prepare(directory, temporary) : absl::OkStatus();
  if (absl::Status s = AgreeOnStatus(world, status); !s.ok()) return s;

  const absl::StatusOr<Manifest> shard = WriteShard(temporary, world.rank(), owned, device);
  status = AgreeOnStatus(world, shard.status());
  if (status.ok()) {
    const std::vector<std::string> shards = GatherTexts(world, shard->SerializeAsString());
    if (first) status = Commit(directory, temporary, request, shards);
    status = AgreeOnStatus(world, status);
  }
  // What was written so far is of no use to anybody; a failure to remove it is not worth reporting.
  if (!status.ok() && first) RemoveTree(temporary).IgnoreError();
  return status;
}

absl::Status LoadCheckpoint(const std::string& step_directory, absl::Span<const Piece> needed,
                            absl::FunctionRef<bool(absl::string_view name)> known_elsewhere,
                            Device& device) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(step_directory);
  if (!reader.ok()) return reader.status();
  if (absl::Status s = CheckNames(reader->manifest(), needed, known_elsewhere); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(step_directory, ": ", s.message()));
  }
  std::vector<std::byte> host;
  for (const Piece& piece : needed) {
    if (piece.box.elements() == 0) continue;
    if (absl::Status s = LoadPiece(*reader, piece, host, device); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(const std::string& step_directory, Communicator& world) {
  absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(step_directory);
  if (absl::Status s = AgreeOnStatus(world, reader.status()); !s.ok()) return s;
  absl::Status status;
  for (const StoredTensor& tensor : reader->manifest().tensor()) {
    for (const StoredBox& box : tensor.box()) {
      const bool mine = box.file() % world.size() == world.rank();
      if (mine && status.ok()) status = reader->Verify(tensor, box);
    }
  }
  return AgreeOnStatus(world, status);
}

}  // namespace twinstream
