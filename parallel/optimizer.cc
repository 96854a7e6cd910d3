#include "parallel/optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/ops.h"

namespace twinstream {
namespace {

int64_t RowElements(const Parameter& parameter) {
  const Shape shape = LocalShape(parameter.spec);
  return shape[0] == 0 ? 0 : shape.elements() / shape[0];
}

Shape RowsShape(const Parameter& parameter, int64_t rows) {
  Shape shape = LocalShape(parameter.spec);
  shape[0] = rows;
  return shape;
}

std::vector<TensorSpec> MomentSpecs(const Parameter& parameter, Range rows) {
  const TensorSpec spec = {"moments", DType::kF32, RowsShape(parameter, rows.size())};
  return {spec, spec};
}

float WeightDecayOf(const OptimizerSpec& spec, WeightDecay decay) {
  switch (decay) {
    case WeightDecay::kMatrix:
      return static_cast<float>(spec.weight_decay());
    case WeightDecay::kEmbedding:
      return spec.decay_embeddings() ? static_cast<float>(spec.weight_decay()) : 0.0F;
    case WeightDecay::kVector:
      return 0.0F;
  }
  Die("unknown kind of weight decay");
}

// Elements that SumOverTensor or SumOverStages needs beside the gradient.
int64_t ExchangeElements(const ParameterSpec& spec) {
  const bool overlapping = spec.sum_over_tensor && spec.shared.extent.rank() > 0;
  return std::max(overlapping ? spec.shared.elements() : 0,
                  spec.sum_over_stages ? LocalShape(spec).elements() : 0);
}

}  // namespace

Optimizer::Optimizer(const OptimizerSpec& spec, bool shard, ParameterStore& parameters,
                     const ProcessGrid& grid, Device& device,
                     const std::vector<std::string>& model_parameters)
    : spec_(spec),
      shard_(shard),
      grid_(grid),
      device_(device),
      model_parameters_(static_cast<int64_t>(model_parameters.size())) {
  absl::flat_hash_map<std::string, int64_t> index;
  for (size_t i = 0; i < model_parameters.size(); ++i)
    index[model_parameters[i]] = static_cast<int64_t>(i);
  for (const std::unique_ptr<Parameter>& parameter : parameters.parameters()) {
    const auto found = index.find(parameter->spec.name);
    Check(found != index.end(), "%s is not a parameter of the model", parameter->spec.name);
    const int64_t rows = LocalShape(parameter->spec)[0];
    Communicator& replicas = grid.In(parameter->spec.replicas);
    Shard part = {.parameter = parameter.get(),
                  .model_index = found->second,
                  .rows = SplitEvenly(rows, replicas.size(), replicas.rank()),
                  .replicas = &replicas};
    part.updated = shard ? part.rows : Range{0, rows};
    for (int r = 0; r < replicas.size(); ++r) {
      part.counts.push_back(SplitEvenly(rows, replicas.size(), r).size() * RowElements(*parameter));
    }
    shards_.push_back(std::move(part));
  }
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards_)
    bytes += BytesFor(MomentSpecs(*shard.parameter, shard.updated));
  return bytes;
}

std::vector<TensorSpec> Optimizer::BufferSpecs() const {
  int64_t exchange = 0;
  for (const Shard& shard : shards_)
    exchange = std::max(exchange, ExchangeElements(shard.parameter->spec));
  return {{"exchange", DType::kF32, {exchange}},
          {"squares", DType::kF64, {model_parameters_}},
          {"square", DType::kF64, {1}}};
}

int64_t Optimizer::buffer_bytes() const { return BytesFor(BufferSpecs()); }

void Optimizer::Materialize() {
  state_ = Storage(device_, state_bytes());
  std::byte* next = state_.data();
  for (Shard& shard : shards_) {
    const std::vector<TensorSpec> specs = MomentSpecs(*shard.parameter, shard.updated);
    const std::vector<Tensor> moments = TensorsIn(next, specs);
    shard.m = moments[0];
    shard.v = moments[1];
    next += BytesFor(specs);
    for (const Piece& piece : GradientPiecesOf(shard)) shard.counted.push_back(piece.data);
  }
  buffers_ = Storage(device_, buffer_bytes());
  const std::vector<Tensor> buffers = TensorsIn(buffers_.data(), BufferSpecs());
  exchange_ = buffers[0];
  squares_ = buffers[1];
  square_ = buffers[2];
  host_squares_.resize(static_cast<size_t>(model_parameters_));
}

void Optimizer::Reduce(Range parameters) {
  ActivityScope doing("reduction of gradients");
  for (int64_t i = parameters.begin; i < parameters.end; ++i) {
    const Shard& shard = shards_[static_cast<size_t>(i)];
    if (!shard.parameter->spec.sum_over_stages) ReduceShard(shard);
  }
}

void Optimizer::ReduceTied() {
  ActivityScope doing("reduction of tied gradients");
  for (const Shard& shard : shards_) {
    if (shard.parameter->spec.sum_over_stages) ReduceShard(shard);
  }
}

void Optimizer::ReduceShard(const Shard& shard) {
  const Parameter& parameter = *shard.parameter;
  if (parameter.spec.sum_over_tensor) SumOverTensor(parameter);
  if (parameter.spec.sum_over_stages) SumOverStages(parameter);
  if (shard_) {
    shard.replicas->ReduceScatter(parameter.gradient, shard.counts);
  } else {
    shard.replicas->AllReduce(parameter.gradient, Reduction::kSum);
  }
}

// Where tensor ranks hold different, overlapping boxes of `shared`, each lays its rows into a
// zeroed tensor of the whole shared part; the sum there is every rank's gradient.
void Optimizer::SumOverTensor(const Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  if (spec.shared.extent.rank() == 0) {
    grid_.tensor().AllReduce(parameter.gradient, Reduction::kSum);
    return;
  }
  const Tensor shared = exchange_.Rows(0, spec.shared.elements()).Reshape(spec.shared.extent);
  const auto for_each_shared_box = [&](auto use) {
    int64_t row = 0;
    for (const HeldBox& held : spec.boxes) {
      const int64_t rows = held.box.extent[0], begin = held.box.begin[0] - spec.shared.begin[0];
      if (Intersect(held.box, spec.shared).elements() > 0) {
        use(parameter.gradient.Rows(row, row + rows), shared.Rows(begin, begin + rows));
      }
      row += rows;
    }
  };
  device_.ops().Zero(shared);
  for_each_shared_box([&](Tensor own, Tensor place) { device_.Copy(place, own); });
  grid_.tensor().AllReduce(shared, Reduction::kSum);
  for_each_shared_box([&](Tensor own, Tensor place) { device_.Copy(own, place); });
}

// First and last stage send each other their part; a + b = b + a bit for bit, so both copies stay
// equal.
void Optimizer::SumOverStages(const Parameter& parameter) {
  Communicator& pipeline = grid_.pipeline();
  const int peer = pipeline.rank() == 0 ? pipeline.size() - 1 : 0;
  const Tensor other =
      exchange_.Rows(0, parameter.gradient.elements()).Reshape(parameter.gradient.shape());
  const Ticket sent = pipeline.Send(parameter.gradient, peer, Channel::kTied);
  pipeline.Receive(other, peer, Channel::kTied);
  pipeline.Wait(sent);
  device_.ops().Add(parameter.gradient, other);
}

double Optimizer::GradientNorm() {
  ActivityScope doing("gradient norm");
  std::fill(host_squares_.begin(), host_squares_.end(), 0.0);
  for (const Shard& shard : shards_) {
    for (const Tensor gradient : shard.counted) {
      double square = 0;
      device_.ops().SumOfSquares(square_, gradient);
      device_.CopyOut(&square, square_);
      host_squares_[static_cast<size_t>(shard.model_index)] += square;
    }
  }
  device_.CopyIn(squares_, host_squares_.data());
  grid_.world().AllReduce(squares_, Reduction::kSum);
  device_.CopyOut(host_squares_.data(), squares_);
  double sum = 0;
  for (double square : host_squares_) sum += square;
  return std::sqrt(sum);
}

void Optimizer::Step(int64_t update, double learning_rate, double gradient_norm) {
  ActivityScope doing("optimizer step", update);
  const double clip = spec_.clip_norm();
  AdamWOptions options = {
      .learning_rate = static_cast<float>(learning_rate),
      .beta1 = static_cast<float>(spec_.beta1()),
      .beta2 = static_cast<float>(spec_.beta2()),
      .eps = static_cast<float>(spec_.eps()),
      .bias_correction1 =
          static_cast<float>(1 - std::pow(spec_.beta1(), static_cast<double>(update))),
      .bias_correction2 =
          static_cast<float>(1 - std::pow(spec_.beta2(), static_cast<double>(update))),
      .gradient_scale =
          clip > 0 ? static_cast<float>(std::min(1.0, clip / (gradient_norm + 1e-6))) : 1.0F};
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.parameter;
    options.weight_decay = WeightDecayOf(spec_, parameter.spec.decay);
    const Range rows = shard.updated;
    device_.ops().AdamW(options, parameter.value.Rows(rows.begin, rows.end), shard.m, shard.v,
                        parameter.gradient.Rows(rows.begin, rows.end));
  }
}

void Optimizer::GatherValues() {
  if (!shard_) return;
  ActivityScope doing("gather of parameters");
  for (const Shard& shard : shards_) {
    shard.replicas->AllGather(shard.parameter->value, shard.counts);
  }
}

// `moments` hold the rows `updated`; the part of them that this rank answers for.
Tensor Optimizer::OwnMoments(const Shard& shard, Tensor moments) const {
  return moments.Rows(shard.rows.begin - shard.updated.begin, shard.rows.end - shard.updated.begin);
}

std::vector<Piece> Optimizer::OwnedPieces() const {
  std::vector<Piece> pieces;
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.parameter;
    const std::string& name = parameter.spec.name;
    const auto append = [&](const std::string& piece_name, Tensor rows) {
      for (Piece& piece : PiecesOf(parameter, piece_name, shard.rows, rows, Copies::kPrimary)) {
        pieces.push_back(std::move(piece));
      }
    };
    append(name, parameter.value.Rows(shard.rows.begin, shard.rows.end));
    append(absl::StrCat("adam_m.", name), OwnMoments(shard, shard.m));
    append(absl::StrCat("adam_v.", name), OwnMoments(shard, shard.v));
  }
  return pieces;
}

std::vector<Piece> Optimizer::NeededPieces() const {
  std::vector<Piece> pieces;
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.parameter;
    const std::string& name = parameter.spec.name;
    const auto append = [&](const std::string& piece_name, Range rows, Tensor local) {
      for (Piece& piece : PiecesOf(parameter, piece_name, rows, local, Copies::kAll))
        pieces.push_back(std::move(piece));
    };
    append(name, {0, parameter.rows()}, parameter.value);
    append(absl::StrCat("adam_m.", name), shard.updated, shard.m);
    append(absl::StrCat("adam_v.", name), shard.updated, shard.v);
  }
  return pieces;
}

std::vector<Piece> Optimizer::GradientPiecesOf(const Shard& shard) {
  const Parameter& parameter = *shard.parameter;
  const Tensor own = parameter.gradient.Rows(shard.rows.begin, shard.rows.end);
  return PiecesOf(parameter, parameter.spec.name, shard.rows, own, Copies::kPrimary);
}

std::vector<Piece> Optimizer::GradientPieces() const {
  std::vector<Piece> pieces;
  for (const Shard& shard : shards_) {
    for (Piece& piece : GradientPiecesOf(shard)) pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace twinstream
