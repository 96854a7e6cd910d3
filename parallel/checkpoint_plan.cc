#include "parallel/checkpoint_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace twinstream {
namespace {

// The parts of `whole` outside of `hole`, as disjoint boxes.
std::vector<Box> Subtract(const Box& whole, const Box& hole) {
  const Box common = Intersect(whole, hole);
  if (common.elements() == 0) return {whole};
  std::vector<Box> rest;
  Box core = whole;  // shrinks to `common`, dimension by dimension
  for (int d = 0; d < whole.begin.rank(); ++d) {
    const int64_t common_end = common.begin[d] + common.extent[d];
    const int64_t core_end = core.begin[d] + core.extent[d];
    Box below = core, above = core;
    below.extent[d] = common.begin[d] - core.begin[d];
    above.begin[d] = common_end;
    above.extent[d] = core_end - common_end;
    if (below.elements() > 0) rest.push_back(below);
    if (above.elements() > 0) rest.push_back(above);
    core.begin[d] = common.begin[d];
    core.extent[d] = common.extent[d];
  }
  return rest;
}

// A part of the tensor that no box holds. There is one.
Box Missing(const Shape& global, const std::vector<Box>& boxes) {
  std::vector<Box> uncovered = {Box::Whole(global)};
  for (const Box& box : boxes) {
    std::vector<Box> rest;
    for (const Box& part : uncovered) {
      for (const Box& left : Subtract(part, box)) rest.push_back(left);
    }
    uncovered = std::move(rest);
  }
  Check(!uncovered.empty(), "no element of %s is missing", global.ToString());
  return uncovered.front();
}

// Two of the boxes that share elements, or a pair of the same index if none do. Swept along
// dimension 0, so that only boxes with rows in common are compared.
std::pair<size_t, size_t> FindOverlap(const std::vector<Box>& boxes) {
  std::vector<size_t> order(boxes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (boxes.size() < 2) return {0, 0};
  if (boxes[0].begin.rank() == 0) return {0, 1};  // a scalar stored twice
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::make_pair(boxes[a].begin[0], a) < std::make_pair(boxes[b].begin[0], b);
  });
  for (size_t i = 0; i < order.size(); ++i) {
    const Box& box = boxes[order[i]];
    const int64_t end = box.begin[0] + box.extent[0];
    for (size_t j = i + 1; j < order.size() && boxes[order[j]].begin[0] < end; ++j) {
      if (Intersect(box, boxes[order[j]]).elements() > 0) return {order[i], order[j]};
    }
  }
  return {0, 0};
}

// Every element exactly once: no two boxes overlap, and their elements add up.
absl::Status CheckCoverage(const StoredTensor& tensor) {
  const Shape global = ShapeOf(tensor);
  std::vector<Box> boxes;
  int64_t elements = 0;
  for (const StoredBox& stored : tensor.box()) {
    boxes.push_back(BoxOf(stored));
    elements += boxes.back().elements();
  }
  const auto [first, second] = FindOverlap(boxes);
  if (first != second) {
    return absl::DataLossError(absl::StrCat("tensor ", tensor.name(), " ", global.ToString(), ": ",
                                            Intersect(boxes[first], boxes[second]).ToString(),
                                            " is stored twice, in ", boxes[first].ToString(),
                                            " and in ", boxes[second].ToString()));
  }
  if (elements != global.elements()) {
    return absl::DataLossError(absl::StrCat("tensor ", tensor.name(), " ", global.ToString(), ": ",
                                            Missing(global, boxes).ToString(),
                                            " is stored nowhere"));
  }
  return absl::OkStatus();
}

// One box: as many dimensions as its tensor, inside of it, and inside its file.
bool IsInside(const StoredBox& box, const StoredTensor& tensor, int64_t element_bytes,
              const Manifest& manifest) {
  if (box.begin_size() != tensor.shape_size() || box.extent_size() != tensor.shape_size()) {
    return false;
  }
  int64_t bytes = element_bytes;
  for (int d = 0; d < tensor.shape_size(); ++d) {
    if (box.begin(d) < 0 || box.extent(d) <= 0 || box.begin(d) > tensor.shape(d) ||
        box.extent(d) > tensor.shape(d) - box.begin(d)) {
      return false;
    }
    bytes *= box.extent(d);
  }
  return box.file() >= 0 && box.file() < manifest.file_size() && box.offset() >= 0 &&
         bytes <= manifest.file(box.file()).bytes() &&
         box.offset() <= manifest.file(box.file()).bytes() - bytes;
}

absl::Status CheckTensor(const StoredTensor& tensor, const Manifest& manifest) {
  const std::string what = absl::StrCat("tensor ", tensor.name());
  const absl::StatusOr<DType> dtype = DTypeNamed(tensor.dtype());
  if (!dtype.ok()) {
    return absl::DataLossError(absl::StrCat(what, ": ", dtype.status().message()));
  }
  int64_t bytes = SizeOf(*dtype);
  bool fits = tensor.shape_size() <= 4;
  for (int64_t extent : tensor.shape()) {
    fits = fits && extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (!fits) return absl::DataLossError(absl::StrCat(what, " has an impossible shape"));
  for (int k = 0; k < tensor.box_size(); ++k) {
    if (!IsInside(tensor.box(k), tensor, SizeOf(*dtype), manifest)) {
      return absl::DataLossError(
          absl::StrCat(what, ": box ", k, " lies outside of the tensor or of its file"));
    }
  }
  return CheckCoverage(tensor);
}

}  // namespace

Box BoxOf(const StoredBox& stored) {
  return {Shape(absl::MakeConstSpan(stored.begin().data(), stored.begin_size())),
          Shape(absl::MakeConstSpan(stored.extent().data(), stored.extent_size()))};
}

Shape ShapeOf(const StoredTensor& stored) {
  return Shape(absl::MakeConstSpan(stored.shape().data(), stored.shape_size()));
}

absl::StatusOr<DType> DTypeNamed(const std::string& name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32}) {
    if (NameOf(dtype) == name) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype \"", name, "\""));
}

Manifest DescribeShard(const std::string& file_name, absl::Span<const Piece> owned) {
  Manifest shard;
  shard.add_file()->set_name(file_name);
  std::map<std::string, StoredTensor*> tensors;
  for (const Piece& piece : owned) {
    if (piece.box.elements() == 0) continue;
    StoredTensor*& tensor = tensors[piece.name];
    if (tensor == nullptr) {
      tensor = shard.add_tensor();
      tensor->set_name(piece.name);
      tensor->set_dtype(std::string(NameOf(piece.data.dtype())));
      for (int64_t extent : piece.global.extents()) tensor->add_shape(extent);
    }
    const int k = tensor->box_size();
    StoredBox* box = tensor->add_box();
    for (int64_t begin : piece.box.begin.extents()) box->add_begin(begin);
    for (int64_t extent : piece.box.extent.extents()) box->add_extent(extent);
    box->set_entry(k == 0 ? piece.name : absl::StrCat(piece.name, "#", k));
    box->set_file(0);
  }
  return shard;
}

absl::StatusOr<Manifest> MergeShards(absl::Span<const Manifest> shards) {
  Manifest merged;
  std::map<std::string, StoredTensor> tensors;
  for (const Manifest& shard : shards) {
    const int first_file = merged.file_size();
    merged.mutable_file()->MergeFrom(shard.file());
    for (const StoredTensor& part : shard.tensor()) {
      StoredTensor& tensor = tensors[part.name()];
      if (!tensor.has_name()) {
        tensor = part;
        tensor.clear_box();
      }
      if (ShapeOf(tensor) != ShapeOf(part) || tensor.dtype() != part.dtype()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "tensor ", part.name(), " is ", tensor.dtype(), " ", ShapeOf(tensor).ToString(),
            " on one rank and ", part.dtype(), " ", ShapeOf(part).ToString(), " on another"));
      }
      for (const StoredBox& box : part.box()) {
        StoredBox* added = tensor.add_box();
        *added = box;
        added->set_file(box.file() + first_file);
      }
    }
  }
  for (auto& [name, tensor] : tensors) *merged.add_tensor() = std::move(tensor);
  if (absl::Status s = CheckManifest(merged); !s.ok()) {
    return absl::FailedPreconditionError(s.message());
  }
  return merged;
}

absl::Status CheckManifest(const Manifest& manifest) {
  for (const ShardFile& file : manifest.file()) {
    if (file.name().empty() || file.name().find('/') != std::string::npos || file.bytes() < 0) {
      return absl::DataLossError(
          absl::StrCat("\"", file.name(), "\" is not a file beside the manifest"));
    }
  }
  for (int i = 0; i < manifest.tensor_size(); ++i) {
    if (i > 0 && manifest.tensor(i - 1).name() >= manifest.tensor(i).name()) {
      return absl::DataLossError(
          absl::StrCat("tensor ", manifest.tensor(i).name(), " is listed twice or out of order"));
    }
    if (absl::Status s = CheckTensor(manifest.tensor(i), manifest); !s.ok()) return s;
  }
  return absl::OkStatus();
}

std::vector<BoxRead> PlanReads(const StoredTensor& tensor, const Box& needed) {
  std::vector<BoxRead> reads;
  for (const StoredBox& stored : tensor.box()) {
    const Box box = BoxOf(stored);
    const Box common = Intersect(box, needed);
    if (common.elements() > 0) reads.push_back({&stored, box, common});
  }
  return reads;
}

const StoredTensor* FindTensor(const Manifest& manifest, const std::string& name) {
  const auto found = std::lower_bound(
      manifest.tensor().begin(), manifest.tensor().end(), name,
      [](const StoredTensor& tensor, const std::string& wanted) { return tensor.name() < wanted; });
  return found == manifest.tensor().end() || found->name() != name ? nullptr : &*found;
}

}  // namespace twinstream
