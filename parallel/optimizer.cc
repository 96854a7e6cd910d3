#include "parallel/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "parallel/collectives.h"

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

// Values that are gathered in one operation, in the order in which the next forward needs them.
constexpr int64_t kGatheredTogether = 1 << 20;  // bytes

template <typename Shards, typename F>
void ForEach(Shards& shards, Range range, F f) {
  for (int64_t i = range.begin; i < range.end; ++i) f(shards[static_cast<size_t>(i)]);
}

}  // namespace

Optimizer::Optimizer(const OptimizerSpec& spec, bool shard, ParameterStore& parameters,
                     CommunicationThread& communication, Device& device,
                     const std::vector<std::string>& model_parameters)
    : spec_(spec),
      shard_(shard),
      parameters_(parameters),
      communication_(communication),
      device_(device),
      model_parameters_(static_cast<int64_t>(model_parameters.size())),
      reduce_(
          [this](Range range) { ForEach(shards_, range, [this](Shard& s) { ReduceShard(s); }); }),
      gather_(
          [this](Range range) { ForEach(shards_, range, [this](Shard& s) { GatherShard(s); }); }) {
  absl::flat_hash_map<std::string, int64_t> index;
  for (size_t i = 0; i < model_parameters.size(); ++i)
    index[model_parameters[i]] = static_cast<int64_t>(i);
  for (const std::unique_ptr<Parameter>& parameter : parameters.parameters()) {
    const auto found = index.find(parameter->spec.name);
    Check(found != index.end(), "%s is not a parameter of the model", parameter->spec.name);
    const int64_t rows = LocalShape(parameter->spec)[0];
    Communicator& replicas = grid().In(parameter->spec.replicas);
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
  updates_.reserve(shards_.size());
  communication_.Reserve(2 * parameters.size());  // a step's gathers and the next one's reductions
}

Optimizer::~Optimizer() { communication_.WaitForAll(); }

bool Optimizer::HoldsMaster(const Shard& shard) const {
  return parameters_.ValueType(shard.parameter->spec) != DType::kF32;
}

// m, v and, where it is not the value itself, the master weight.
std::vector<TensorSpec> Optimizer::StateSpecs(const Shard& shard) const {
  const TensorSpec spec = {"state", DType::kF32, RowsShape(*shard.parameter, shard.updated.size())};
  return std::vector<TensorSpec>(HoldsMaster(shard) ? 3 : 2, spec);
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const Shard& shard : shards_) bytes += BytesFor(StateSpecs(shard));
  return bytes;
}

std::vector<TensorSpec> Optimizer::BufferSpecs() const {
  int64_t exchange = 0, boxes = 0;
  for (const Shard& shard : shards_) {
    exchange = std::max(exchange, ExchangeElements(shard.parameter->spec));
    boxes += static_cast<int64_t>(shard.parameter->spec.boxes.size());
  }
  return {{"exchange", DType::kF32, {exchange}}, {"squares", DType::kF64, {boxes}}};
}

int64_t Optimizer::buffer_bytes() const { return BytesFor(BufferSpecs()); }

void Optimizer::Materialize() {
  state_ = Storage(device_, state_bytes());
  std::byte* next = state_.data();
  for (Shard& shard : shards_) {
    const std::vector<TensorSpec> specs = StateSpecs(shard);
    const std::vector<Tensor> state = TensorsIn(next, specs);
    shard.m = state[0];
    shard.v = state[1];
    shard.master = HoldsMaster(shard)
                       ? state[2]
                       : shard.parameter->value.Rows(shard.updated.begin, shard.updated.end);
    next += BytesFor(specs);
    const std::vector<Piece> counted = GradientPiecesOf(shard);
    for (const Piece& piece : counted) counted_.push_back(piece.data);
    shard.counted = counted.size();
  }
  buffers_ = Storage(device_, buffer_bytes());
  const std::vector<Tensor> buffers = TensorsIn(buffers_.data(), BufferSpecs());
  exchange_ = buffers[0];
  squares_ = buffers[1];
  own_squares_ = HostArray<double>(device_, squares_.elements());
  model_squares_.resize(static_cast<size_t>(model_parameters_));
}

void Optimizer::InitializeMasters(uint64_t seed) {
  for (const Shard& shard : shards_) {
    if (!HoldsMaster(shard)) continue;
    InitializeRows(shard.parameter->spec, shard.updated, shard.master, seed, device_);
  }
}

void Optimizer::StartReduce(Range parameters) {
  Range run = {parameters.begin, parameters.begin};  // to be posted together
  for (int64_t i = parameters.begin; i < parameters.end; ++i) {
    Shard& shard = shards_[static_cast<size_t>(i)];
    if (!shard.reducing && !shard.parameter->spec.sum_over_stages) {
      shard.reducing = true;
      run.end = i + 1;
      continue;
    }
    PostReduction(run);
    run = {i + 1, i + 1};
  }
  PostReduction(run);
}

void Optimizer::StartReduceTied() {
  for (int64_t i = 0; i < static_cast<int64_t>(shards_.size()); ++i) {
    Shard& shard = shards_[static_cast<size_t>(i)];
    if (!shard.parameter->spec.sum_over_stages) continue;
    shard.reducing = true;
    PostReduction({i, i + 1});
  }
}

bool Optimizer::Communicates(const Shard& shard) const {
  const ParameterSpec& spec = shard.parameter->spec;
  return shard.replicas->size() > 1 || spec.sum_over_stages ||
         (spec.sum_over_tensor && grid().tensor().size() > 1);
}

void Optimizer::PostReduction(Range parameters) {
  for (int64_t i = parameters.begin; i < parameters.end; ++i) {
    if (!Communicates(shards_[static_cast<size_t>(i)])) continue;
    communication_.Post("reduction of gradients", reduce_, parameters);
    return;
  }
}

void Optimizer::ReduceShard(const Shard& shard) {
  const Parameter& parameter = *shard.parameter;
  const ActivityScope doing(parameter.spec.name.c_str());
  if (parameter.spec.sum_over_tensor) SumOverTensor(parameter);
  if (parameter.spec.sum_over_stages) SumOverStages(parameter);
  SumOverReplicas(shard);
}

// Sharded or not, the own rows are the same bits where sums are in the order of the ranks.
void Optimizer::SumOverReplicas(const Shard& shard) {
  const Tensor gradient = shard.parameter->gradient;
  if (HoldsMaster(shard)) {
    shard.replicas->ReduceScatterAsBFloat16(gradient, shard.counts);
    if (!shard_) shard.replicas->AllGather(gradient, shard.counts);
  } else if (shard_) {
    shard.replicas->ReduceScatter(gradient, shard.counts);
  } else {
    shard.replicas->AllReduce(gradient, Reduction::kSum);
  }
}

// Where tensor ranks hold different, overlapping boxes of `shared`, each lays its rows into a
// zeroed tensor of the whole shared part; the sum there is every rank's gradient.
void Optimizer::SumOverTensor(const Parameter& parameter) {
  const ParameterSpec& spec = parameter.spec;
  if (spec.shared.extent.rank() == 0) {
    grid().tensor().AllReduce(parameter.gradient, Reduction::kSum);
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
  Device& device = communication_.device();
  device.ops().Zero(shared);
  for_each_shared_box([&](Tensor own, Tensor place) { device.Copy(place, own); });
  grid().tensor().AllReduce(shared, Reduction::kSum);
  for_each_shared_box([&](Tensor own, Tensor place) { device.Copy(own, place); });
}

// First and last stage send each other their part; a + b = b + a bit for bit, so both copies stay
// equal.
void Optimizer::SumOverStages(const Parameter& parameter) {
  Communicator& pipeline = grid().pipeline();
  const int peer = pipeline.rank() == 0 ? pipeline.size() - 1 : 0;
  const Tensor other =
      exchange_.Rows(0, parameter.gradient.elements()).Reshape(parameter.gradient.shape());
  const Ticket sent = pipeline.Send(parameter.gradient, peer, Channel::kTied);
  pipeline.Receive(other, peer, Channel::kTied);
  pipeline.Wait(sent);
  communication_.device().ops().Add(parameter.gradient, other);
}

double Optimizer::GradientNorm() {
  ActivityScope doing("gradient norm");
  WaitForReductions();
  for (const Shard& shard : shards_) {
    Check(shard.reducing, "the gradient of %s is asked for before its reduction",
          shard.parameter->spec.name);
  }
  ForgetReductions();
  const Tensor squares = squares_.Rows(0, static_cast<int64_t>(counted_.size()));
  device_.ops().SumsOfSquares(squares, counted_);
  device_.CopyOut(own_squares_.data(), squares);
  std::fill(model_squares_.begin(), model_squares_.end(), 0.0);
  const double* square = own_squares_.begin();
  for (const Shard& shard : shards_) {
    double& of_parameter = model_squares_[static_cast<size_t>(shard.model_index)];
    for (size_t i = 0; i < shard.counted; ++i) of_parameter += *square++;
  }
  AllReduceValues(grid().world(), absl::MakeSpan(model_squares_), Reduction::kSum);
  return std::sqrt(std::accumulate(model_squares_.begin(), model_squares_.end(), 0.0));
}

AdamWItem Optimizer::UpdateOf(const Shard& shard) const {
  const Parameter& parameter = *shard.parameter;
  const auto [begin, end] = shard.updated;
  return {.weight = shard.master,
          .m = shard.m,
          .v = shard.v,
          .gradient = parameter.gradient.Rows(begin, end),
          .rounded = HoldsMaster(shard) ? parameter.value.Rows(begin, end) : Tensor(),
          .weight_decay = WeightDecayOf(spec_, parameter.spec.decay)};
}

void Optimizer::Step(int64_t update, double learning_rate, double gradient_norm) {
  ActivityScope doing("optimizer step", update);
  const double clip = spec_.clip_norm();
  const AdamWOptions options = {
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
  Range run = {0, 0};  // updated and gathered together
  int64_t bytes = 0;   // that are gathered of it
  for (const Shard& shard : shards_) {
    updates_.push_back(UpdateOf(shard));
    ++run.end;
    bytes += IsGathered(shard) ? shard.parameter->value.bytes() : 0;
    if (bytes < kGatheredTogether && run.end < static_cast<int64_t>(shards_.size())) continue;
    device_.ops().AdamW(options, updates_);
    updates_.clear();
    if (bytes > 0) {
      const auto number = communication_.Post("gathering of values", gather_, run);
      ForEach(shards_, run, [number](Shard& gathered) { gathered.gathered = number; });
    }
    run.begin = run.end;
    bytes = 0;
  }
}

bool Optimizer::IsGathered(const Shard& shard) const {
  return shard_ && shard.replicas->size() > 1;
}

void Optimizer::GatherShard(const Shard& shard) {
  if (!IsGathered(shard)) return;
  const ActivityScope doing(shard.parameter->spec.name.c_str());
  shard.replicas->AllGather(shard.parameter->value, shard.counts);
}

CommunicationThread::Number Optimizer::GatherOf(Range parameters) const {
  CommunicationThread::Number last = 0;
  ForEach(shards_, parameters, [&](const Shard& shard) { last = std::max(last, shard.gathered); });
  return last;
}

bool Optimizer::HasValues(Range parameters) const {
  return communication_.IsDone(GatherOf(parameters));
}

void Optimizer::WaitForValues(Range parameters) const {
  const ActivityScope doing("gathering of values");
  communication_.Wait(GatherOf(parameters));
}

// Of a tensor with the rows `updated`: the part that this rank answers for.
Tensor Optimizer::OwnRows(const Shard& shard, Tensor updated) const {
  return updated.Rows(shard.rows.begin - shard.updated.begin, shard.rows.end - shard.updated.begin);
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
    append(name, OwnRows(shard, shard.master));
    append(absl::StrCat("adam_m.", name), OwnRows(shard, shard.m));
    append(absl::StrCat("adam_v.", name), OwnRows(shard, shard.v));
  }
  return pieces;
}

std::vector<Piece> Optimizer::WeightPieces() const {
  std::vector<Piece> pieces = parameters_.ValuePieces();
  for (const Shard& shard : shards_) {
    if (!HoldsMaster(shard)) continue;
    const Parameter& parameter = *shard.parameter;
    for (Piece& piece :
         PiecesOf(parameter, parameter.spec.name, shard.updated, shard.master, Copies::kAll)) {
      pieces.push_back(std::move(piece));
    }
  }
  return pieces;
}

std::vector<Piece> Optimizer::NeededPieces() const {
  std::vector<Piece> pieces = WeightPieces();
  for (const Shard& shard : shards_) {
    const Parameter& parameter = *shard.parameter;
    const std::string& name = parameter.spec.name;
    const auto append = [&](const std::string& piece_name, Tensor moments) {
      for (Piece& piece : PiecesOf(parameter, piece_name, shard.updated, moments, Copies::kAll))
        pieces.push_back(std::move(piece));
    };
    append(absl::StrCat("adam_m.", name), shard.m);
    append(absl::StrCat("adam_v.", name), shard.v);
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
