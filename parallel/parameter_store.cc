#include "parallel/parameter_store.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/ops.h"
#include "parallel/initializer.h"

namespace twinstream {
namespace {

// The dimension along which rows run: the first, or the second of a tensor of matrices.
int RowDimension(const Box& box) { return box.extent.rank() == 3 ? 1 : 0; }

int64_t RowsIn(const Box& box) { return box.extent[RowDimension(box)]; }

// Rows [begin, end) of the box.
Box RowsOf(const Box& box, int64_t begin, int64_t end) {
  Box rows = box;
  rows.begin[RowDimension(box)] += begin;
  rows.extent[RowDimension(box)] = end - begin;
  return rows;
}

}  // namespace

Shape LocalShape(const ParameterSpec& spec) {
  Check(!spec.boxes.empty() && spec.global.rank() >= 1, "%s has no boxes or no dimensions",
        spec.name);
  const auto row_extents = [&spec](const Box& box) {
    Check(box.extent.rank() < 3 || box.extent[0] == 1, "%s: box %s holds several matrices",
          spec.name, box.ToString());
    return box.extent.extents().subspan(static_cast<size_t>(RowDimension(box)));
  };
  Shape local(row_extents(spec.boxes[0].box));
  local[0] = 0;
  for (const HeldBox& held : spec.boxes) {
    Check(row_extents(held.box).subspan(1) == local.extents().subspan(1),
          "%s: boxes %s and %s cannot lie one below the other", spec.name,
          spec.boxes[0].box.ToString(), held.box.ToString());
    local[0] += RowsIn(held.box);
  }
  return local;
}

std::vector<Piece> PiecesOf(const Parameter& parameter, const std::string& name, Range rows,
                            Tensor local, Copies copies) {
  std::vector<Piece> pieces;
  int64_t box_begin = 0;  // local row of the box's first row
  for (const HeldBox& held : parameter.spec.boxes) {
    const int64_t box_end = box_begin + RowsIn(held.box);
    const int64_t begin = std::max(rows.begin, box_begin), end = std::min(rows.end, box_end);
    if (begin < end && (held.primary || copies == Copies::kAll)) {
      pieces.push_back({name, parameter.spec.global,
                        RowsOf(held.box, begin - box_begin, end - box_begin),
                        local.Rows(begin - rows.begin, end - rows.begin)});
    }
    box_begin = box_end;
  }
  return pieces;
}

Parameter& ParameterStore::Declare(ParameterSpec spec) {
  Check(values_.bytes() == 0, "%s is declared after Materialize", spec.name);
  parameters_.push_back(std::make_unique<Parameter>());
  Parameter& parameter = *parameters_.back();
  parameter.spec = std::move(spec);
  Check(names_.insert(parameter.spec.name).second, "parameter %s is declared twice",
        parameter.spec.name);
  return parameter;
}

DType ParameterStore::ValueType(const ParameterSpec& spec) const {
  return spec.global.rank() >= 2 && !spec.float32 ? matrices_ : DType::kF32;
}

std::vector<TensorSpec> ParameterStore::ValueSpecs() const {
  std::vector<TensorSpec> specs;
  for (const auto& parameter : parameters_) {
    const ParameterSpec& spec = parameter->spec;
    specs.push_back({spec.name, ValueType(spec), LocalShape(spec)});
  }
  return specs;
}

std::vector<TensorSpec> ParameterStore::GradientSpecs() const {
  std::vector<TensorSpec> specs = ValueSpecs();
  for (TensorSpec& spec : specs) spec.dtype = DType::kF32;
  return specs;
}

void ParameterStore::Materialize(Device& device, Gradients gradients) {
  Check(values_.bytes() == 0, "the parameters have memory already");
  values_ = Storage(device, value_bytes());
  const std::vector<Tensor> values = TensorsIn(values_.data(), ValueSpecs());
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->value = values[i];
  if (gradients == Gradients::kNone) return;
  gradients_ = Storage(device, gradient_bytes());
  const std::vector<Tensor> gradient_tensors = TensorsIn(gradients_.data(), GradientSpecs());
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->gradient = gradient_tensors[i];
}

void InitializeRows(const ParameterSpec& spec, Range rows, Tensor weights, uint64_t seed,
                    Device& device) {
  constexpr int64_t kPartElements = int64_t{1} << 20;  // drawn on the host at a time
  std::vector<float> part;
  int64_t box_begin = 0;  // local row of the box's first row
  for (const HeldBox& held : spec.boxes) {
    const int64_t box_end = box_begin + RowsIn(held.box);
    const int64_t end = std::min(rows.end, box_end);
    const int64_t columns = held.box.elements() / std::max<int64_t>(1, RowsIn(held.box));
    const int64_t step = std::max<int64_t>(1, kPartElements / std::max<int64_t>(1, columns));
    for (int64_t row = std::max(rows.begin, box_begin); row < end; row += step) {
      const int64_t stop = std::min(end, row + step);
      const Box box = RowsOf(held.box, row - box_begin, stop - box_begin);
      part.resize(static_cast<size_t>(box.elements()));
      InitializeBox(spec.init_std * held.init_gain, seed, spec.name, spec.global, box, part.data());
      CopyInRounded(device, weights.Rows(row - rows.begin, stop - rows.begin), part);
      device.Synchronize();  // `part` is written again
    }
    box_begin = box_end;
  }
}

void ParameterStore::Initialize(Device& device, uint64_t seed) {
  for (const auto& parameter : parameters_) {
    InitializeRows(parameter->spec, {0, parameter->rows()}, parameter->value, seed, device);
  }
}

void ParameterStore::ClearGradients(const Ops& ops) {
  if (gradients_.bytes() == 0) return;
  for (const auto& parameter : parameters_) {
    parameter->contributed = false;
    if (!parameter->spec.first_overwrites) ops.Zero(parameter->gradient);
  }
}

std::vector<Piece> ParameterStore::ValuePieces() const {
  std::vector<Piece> pieces;
  for (const auto& parameter : parameters_) {
    for (Piece& piece : PiecesOf(*parameter, parameter->spec.name, {0, parameter->rows()},
                                 parameter->value, Copies::kAll)) {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

int64_t ParameterStore::value_bytes() const { return BytesFor(ValueSpecs()); }

int64_t ParameterStore::gradient_bytes() const { return BytesFor(GradientSpecs()); }

}  // namespace twinstream
