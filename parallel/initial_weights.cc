#include "parallel/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/safetensors.h"

namespace twinstream {
namespace {

bool IsFloat(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F64";
}

// What the source has wrong about the model's tensors, one text each.
std::vector<std::string> Faults(const SafetensorsSource& source,
                                absl::Span<const TensorSpec> model) {
  std::vector<std::string> faults;
  std::set<std::string> names;
  for (const TensorSpec& tensor : model) {
    names.insert(tensor.name);
    const StoredArray* array = source.Find(tensor.name);
    if (array == nullptr) {
      faults.push_back(absl::StrCat("tensor ", tensor.name, " is missing"));
    } else if (array->shape != tensor.shape) {
      faults.push_back(absl::StrCat("tensor ", tensor.name, " is ", array->shape.ToString(),
                                    " instead of ", tensor.shape.ToString()));
    } else if (!IsFloat(array->dtype)) {
      faults.push_back(absl::StrCat("tensor ", tensor.name, " has dtype ", array->dtype,
                                    " instead of F32, BF16 or F64"));
    }
  }
  for (const auto& [name, array] : source.arrays()) {
    if (names.count(name) == 0) {
      faults.push_back(absl::StrCat("tensor ", name, " is not in this model"));
    }
  }
  return faults;
}

absl::StatusOr<SafetensorsSource> OpenFor(const std::string& path,
                                          absl::Span<const TensorSpec> model) {
  absl::StatusOr<SafetensorsSource> source = SafetensorsSource::Open(path);
  if (!source.ok()) return source;
  const std::vector<std::string> faults = Faults(*source, model);
  if (!faults.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", absl::StrJoin(faults, "; "),
                     "; give the weights of this model, or make model theirs"));
  }
  return source;
}

}  // namespace

absl::Status CheckInitialWeights(const std::string& path, absl::Span<const TensorSpec> model) {
  return OpenFor(path, model).status();
}

absl::Status LoadInitialWeights(const std::string& path, absl::Span<const TensorSpec> model,
                                absl::Span<const Piece> needed, Device& device) {
  const absl::StatusOr<SafetensorsSource> source = OpenFor(path, model);
  if (!source.ok()) return source.status();
  std::vector<std::byte> stored;
  for (const Piece& piece : needed) {
    const StoredArray* array = source->Find(piece.name);
    Check(array != nullptr && array->shape == piece.global, "piece %s is not of the model",
          piece.name);
    stored.resize(static_cast<size_t>(piece.box.elements() * array->element_bytes()));
    CopyBox(piece.box, Box::Whole(piece.global), array->bytes.data(), piece.box, stored.data(),
            array->element_bytes());
    const std::vector<float> values = ToFloats(array->dtype, stored);
    const auto bad = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
    if (bad != values.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", piece.name, " holds ", *bad,
                                                     " in its part ", piece.box.ToString(),
                                                     "; give weights that are finite in float32"));
    }
    CopyInRounded(device, piece.data, values);
  }
  return absl::OkStatus();
}

}  // namespace twinstream
