#include "launch/initial_weights.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace twinstream {
namespace {

// Row-major elements of `box` in a tensor of shape `global` that holds `bytes`, as float32. Up to
// two dimensions: what a dense model's parameters have.
std::vector<float> ReadBox(const StoredArray& array, const Box& box) {
  const Shape& global = array.shape;
  const int64_t columns = global.rank() == 2 ? global[1] : 1;
  const int64_t first_column = global.rank() == 2 ? box.begin[1] : 0;
  const int64_t box_columns = global.rank() == 2 ? box.extent[1] : 1;
  const size_t element = static_cast<size_t>(array.element_bytes());
  std::vector<float> values;
  values.reserve(static_cast<size_t>(box.elements()));
  for (int64_t row = box.begin[0]; row < box.begin[0] + box.extent[0]; ++row) {
    const size_t first = static_cast<size_t>(row * columns + first_column);
    const std::vector<float> piece =
        ToFloats(array.dtype,
                 array.bytes.subspan(first * element, static_cast<size_t>(box_columns) * element));
    values.insert(values.end(), piece.begin(), piece.end());
  }
  return values;
}

}  // namespace

absl::StatusOr<SafetensorsSource> OpenInitialWeights(const std::string& path,
                                                     const std::vector<ModelParameter>& model) {
  absl::StatusOr<SafetensorsSource> source = SafetensorsSource::Open(path);
  if (!source.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.initial_weights: ", source.status().message()));
  }
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const ModelParameter& parameter : model) {
    known.insert(parameter.name);
    const StoredArray* array = source->Find(parameter.name);
    if (array == nullptr) {
      problems.push_back(absl::StrCat(parameter.name, " is missing"));
    } else if (!(array->shape == parameter.shape)) {
      problems.push_back(absl::StrCat(parameter.name, " has shape ", array->shape.ToString(),
                                      ", the model wants ", parameter.shape.ToString()));
    } else if (array->dtype != "F32" && array->dtype != "BF16" && array->dtype != "F64") {
      problems.push_back(
          absl::StrCat(parameter.name, " has dtype ", array->dtype, ", not F32, BF16 or F64"));
    }
  }
  for (const auto& [name, array] : source->arrays()) {
    if (known.count(name) == 0)
      problems.push_back(absl::StrCat(name, " is not a tensor of the model"));
  }
  if (problems.empty()) return source;
  return absl::InvalidArgumentError(absl::StrCat(
      "train.initial_weights ", path, " does not fit the model: ", absl::StrJoin(problems, "; "),
      ". Give the weights of this model, or change model to theirs."));
}

void LoadInitialWeights(const SafetensorsSource& source, const ParameterStore& parameters,
                        Device& device) {
  for (const std::unique_ptr<Parameter>& parameter : parameters.parameters()) {
    const StoredArray* array = source.Find(parameter->spec.name);
    Check(array != nullptr, "%s is missing", parameter->spec.name);
    const Range rows = {0, parameter->rows()};
    for (const Piece& piece :
         PiecesOf(*parameter, parameter->spec.name, rows, parameter->value, Copies::kAll)) {
      device.CopyIn(piece.data, ReadBox(*array, piece.box).data());
    }
  }
}

}  // namespace twinstream
