#include "parallel/optimizer.h"

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "core/profiled_device.h"
#include "gtest/gtest.h"
#include "tests/testing/near.h"
#include "tests/testing/run_ranks.h"

namespace twinstream {
namespace {

constexpr int kUpdates = 3;
constexpr double kLearningRate = 0.02;
const std::vector<std::string> kNames = {"embedding.weight", "up.weight", "out.weight",
                                         "norm.weight"};

struct Layout {
  int tensor, data;
  bool shard;
  Overlap overlap = Overlap::kOff;
  DType matrices = DType::kF32;
};
using Whole = std::map<std::string, std::vector<double>>;  // by name

const Shape kEmbedding = {7, 3}, kUp = {10, 3}, kOut = {5, 6}, kNorm = {4};

// One parameter of each kind, as tensor rank `rank` of `size` holds it.
std::vector<ParameterSpec> Specs(int rank, int size) {
  const Range rows = SplitEvenly(7, size, rank), half = SplitEvenly(5, size, rank),
              columns = SplitEvenly(6, size, rank);
  return {{.name = kNames[0],
           .global = kEmbedding,
           .boxes = {{Box::Range(kEmbedding, 0, rows.begin, rows.end)}},
           .init_std = 1,
           .decay = WeightDecay::kEmbedding},
          {.name = kNames[1],
           .global = kUp,
           .boxes = {{Box::Range(kUp, 0, half.begin, half.end)},
                     {Box::Range(kUp, 0, 5 + half.begin, 5 + half.end)}},
           .init_std = 1},
          {.name = kNames[2],
           .global = kOut,
           .boxes = {{Box::Range(kOut, 1, columns.begin, columns.end)}},
           .init_std = 1},
          {.name = kNames[3],
           .global = kNorm,
           .boxes = {{Box::Whole(kNorm), rank == 0}},
           .decay = WeightDecay::kVector,
           .sum_over_tensor = true}};
}

// Element i's gradient, the same for every layout: data rank and tensor rank share it out.
double GradientOf(int update, size_t name, int64_t i) {
  return std::sin(1.0 + update + 10.0 * static_cast<double>(name) + static_cast<double>(i));
}

void CopyFromWhole(const Piece& piece, const std::vector<float>& whole) {
  CopyBox(piece.box, Box::Whole(piece.global), reinterpret_cast<const std::byte*>(whole.data()),
          piece.box, piece.data.data(), sizeof(float));
}

void FillGradients(ParameterStore& store, int update, const Layout& layout) {
  for (size_t p = 0; p < kNames.size(); ++p) {
    const Parameter& parameter = *store.parameters()[p];
    const int addends = layout.data * (parameter.spec.sum_over_tensor ? layout.tensor : 1);
    std::vector<float> whole;
    for (int64_t i = 0; i < parameter.spec.global.elements(); ++i) {
      whole.push_back(static_cast<float>(GradientOf(update, p, i) / addends));
    }
    for (const Piece& piece :
         PiecesOf(parameter, kNames[p], {0, parameter.rows()}, parameter.gradient, Copies::kAll)) {
      CopyFromWhole(piece, whole);
    }
  }
}

// AdamW on whole tensors in double, in PyTorch's order.
class Reference {
 public:
  Reference(const OptimizerSpec& spec, Whole start) : spec_(spec), weights_(std::move(start)) {}

  double Norm(int update) const {
    double sum = 0;
    for (size_t p = 0; p < kNames.size(); ++p) {
      for (size_t i = 0; i < weights_.at(kNames[p]).size(); ++i) {
        sum += std::pow(GradientOf(update, p, static_cast<int64_t>(i)), 2);
      }
    }
    return std::sqrt(sum);
  }

  void Step(int update) {
    const double clip = spec_.clip_norm(), beta1 = spec_.beta1(), beta2 = spec_.beta2();
    const double factor = clip == 0 ? 1 : std::min(1.0, clip / (Norm(update) + 1e-6));
    for (size_t p = 0; p < kNames.size(); ++p) {
      const bool decays = p == 0 ? spec_.decay_embeddings() : p < 3;
      std::vector<double>& w = weights_[kNames[p]];
      std::vector<double>&m = m_[kNames[p]], &v = v_[kNames[p]];
      m.resize(w.size());
      v.resize(w.size());
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = factor * GradientOf(update, p, static_cast<int64_t>(i));
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        if (decays) w[i] *= 1 - kLearningRate * spec_.weight_decay();
        w[i] -= kLearningRate * (m[i] / (1 - std::pow(beta1, update))) /
                (std::sqrt(v[i] / (1 - std::pow(beta2, update))) + spec_.eps());
      }
    }
  }

  const Whole& weights() const { return weights_; }

 private:
  const OptimizerSpec& spec_;
  Whole weights_, m_, v_;
};

// Float32 weights come within 2e-6. Gradients that travel as bf16 are off by 2^-8, relatively, and
// so are Adam's m and the root of its v: an update by twice that.
double MasterTolerance(const Layout& layout) {
  if (layout.matrices == DType::kF32 || layout.data == 1) return 2e-6;
  return 2e-6 + kUpdates * kLearningRate * 2 * testing::kBFloat16Epsilon;
}

void ExpectNear(const Piece& piece, const Whole& expected, const Layout& layout) {
  const bool narrow = piece.data.dtype() == DType::kBF16;
  const std::vector<double>& whole = expected.at(piece.name);
  std::vector<double> part(static_cast<size_t>(piece.box.elements()));
  CopyBox(piece.box, Box::Whole(piece.global), reinterpret_cast<const std::byte*>(whole.data()),
          piece.box, reinterpret_cast<std::byte*>(part.data()), sizeof(double));
  for (size_t i = 0; i < part.size(); ++i) {
    const float actual =
        narrow ? static_cast<float>(piece.data.As<BFloat16>()[i]) : piece.data.As<float>()[i];
    const double rounding = narrow ? std::abs(part[i]) * testing::kBFloat16Epsilon : 0;
    ASSERT_NEAR(actual, part[i], rounding + MasterTolerance(layout))
        << piece.name << " " << piece.box.ToString() << " tensor " << layout.tensor << " data "
        << layout.data << " shard " << layout.shard;
  }
}

Whole InitialWeights() {
  const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  ParameterStore store;
  for (const ParameterSpec& spec : Specs(0, 1)) store.Declare(spec);
  store.Materialize(*device, Gradients::kNone);
  store.Initialize(*device, 1);
  Whole whole;
  for (const Piece& piece : store.ValuePieces()) {
    const float* values = piece.data.As<float>();
    std::vector<double>& to = whole[piece.name];
    to.insert(to.end(), values, values + piece.data.elements());
  }
  return whole;
}

void ExpectReference(const OptimizerSpec& spec, const Layout& layout) {
  const Whole start = InitialWeights();
  std::mutex mutex;
  std::map<std::string, std::vector<int>> owners;  // by piece name and element
  testing::RunRanks(layout.tensor * layout.data, [&](Transport& transport) {
    const ProcessGrid grid({.tensor = layout.tensor, .data = layout.data}, transport);
    const std::unique_ptr<Device> device = MakeDevice("cpu").value();
    ParameterStore store(layout.matrices);
    for (const ParameterSpec& own : Specs(grid.tensor().rank(), layout.tensor)) store.Declare(own);
    CommunicationThread communication(layout.overlap,
                                      UseOfUpdates(store, grid.shape(), Gradients::kAllocated),
                                      grid, transport, *device);
    Optimizer optimizer(spec, layout.shard, store, communication, *device, kNames);
    store.Materialize(*device, Gradients::kAllocated);
    optimizer.Materialize();
    store.Initialize(*device, 1);
    optimizer.InitializeMasters(1);
    Reference reference(spec, start);
    for (int update = 1; update <= kUpdates; ++update) {
      FillGradients(store, update, layout);
      optimizer.StartReduce({1, 3});  // as a stage tells of a block
      optimizer.StartReduce({0, store.size()});
      optimizer.StartReduceTied();
      const double norm = optimizer.GradientNorm();
      const bool rounds = layout.matrices == DType::kBF16 && layout.data > 1;
      ASSERT_NEAR(norm, reference.Norm(update), norm * (rounds ? testing::kBFloat16Epsilon : 1e-6));
      optimizer.Step(update, kLearningRate, norm);
      reference.Step(update);
      optimizer.WaitForValues({0, store.size()});
      for (const Piece& piece : store.ValuePieces()) {
        ExpectNear(piece, reference.weights(), layout);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (const Piece& piece : optimizer.OwnedPieces()) {
      ASSERT_EQ(piece.data.dtype(), DType::kF32) << piece.name;
      if (piece.name.rfind("adam_", 0) != 0) ExpectNear(piece, reference.weights(), layout);
      std::vector<int>& count = owners[piece.name];
      count.resize(static_cast<size_t>(piece.global.elements()));
      std::vector<int> whole(count.size()), ones(static_cast<size_t>(piece.box.elements()), 1);
      CopyBox(piece.box, piece.box, reinterpret_cast<const std::byte*>(ones.data()),
              Box::Whole(piece.global), reinterpret_cast<std::byte*>(whole.data()), sizeof(int));
      for (size_t i = 0; i < count.size(); ++i) count[i] += whole[i];
    }
  });
  EXPECT_EQ(owners.size(), 3 * kNames.size());  // weight, adam_m, adam_v
  for (const auto& [name, count] : owners) {
    EXPECT_EQ(count, std::vector<int>(count.size(), 1)) << name;
  }
}

std::vector<Layout> Layouts() {
  std::vector<Layout> layouts;
  for (int tensor : {1, 2, 3}) {
    for (int data : {1, 2, 3, 6}) {  // 6 data ranks: more than some tensors have rows
      for (bool shard : {false, true}) {
        for (Overlap overlap : {Overlap::kOff, Overlap::kOn}) {
          layouts.push_back({tensor, data, shard, overlap});
        }
      }
    }
  }
  return layouts;
}

TEST(Optimizer, IsAdamWOnEveryLayout) {
  for (const Layout& layout : Layouts()) ExpectReference(OptimizerSpec(), layout);
}

// The masters stay float32's, what is computed with is one rounding away.
TEST(Optimizer, IsAdamWOnFloat32MastersOfBf16Matrices) {
  for (Layout layout : Layouts()) {
    layout.matrices = DType::kBF16;
    ExpectReference(OptimizerSpec(), layout);
  }
}

TEST(Optimizer, ClipsOnlyAboveTheLimitAndNotAtZero) {
  for (double clip : {0.0, 0.5, 1e6}) {
    OptimizerSpec spec;
    spec.set_clip_norm(clip);
    // Adam forgets a constant factor; a large eps lets it show.
    spec.set_eps(1);
    ExpectReference(spec, {2, 2, true, Overlap::kOn});
  }
}

TEST(Optimizer, SparesTheEmbeddingFromDecayWhenAsked) {
  OptimizerSpec spec;
  spec.set_weight_decay(5);
  for (bool decays : {false, true}) {
    spec.set_decay_embeddings(decays);
    ExpectReference(spec, {2, 3, true, Overlap::kOn});
  }
}

int64_t CallsOf(const OpProfile& profile, absl::string_view op) {
  int64_t calls = 0;
  for (const OpRow& row : profile.rows()) calls += row.key.op == op ? row.calls : 0;
  return calls;
}

// A vector and three matrices of 1 MiB: all at once, or, where a matrix is gathered while the next
// is updated, as they are gathered.
TEST(Optimizer, UpdatesTogetherWhatIsGatheredTogether) {
  const OptimizerSpec spec;
  for (bool shard : {false, true}) {
    testing::RunRanks(2, [&](Transport& transport) {
      const ProcessGrid grid({.data = 2}, transport);
      OpProfile profile;
      const auto device = MakeProfiledDevice(MakeDevice("cpu").value(), profile);
      ParameterStore store;
      for (const std::string& name : kNames) {
        const Shape shape = name == kNames[0] ? Shape{512} : Shape{512, 512};
        store.Declare({.name = name, .global = shape, .boxes = {{Box::Whole(shape)}}});
      }
      CommunicationThread communication(Overlap::kOff,
                                        UseOfUpdates(store, grid.shape(), Gradients::kAllocated),
                                        grid, transport, *device);
      Optimizer optimizer(spec, shard, store, communication, *device, kNames);
      store.Materialize(*device, Gradients::kAllocated);
      optimizer.Materialize();
      store.Initialize(*device, 1);
      for (const auto& parameter : store.parameters()) device->ops().Zero(parameter->gradient);
      profile.BeginStep();
      optimizer.StartReduce({0, store.size()});
      optimizer.Step(1, kLearningRate, optimizer.GradientNorm());
      profile.EndStep();
      EXPECT_EQ(CallsOf(profile, "sums of squares"), 1);
      EXPECT_EQ(CallsOf(profile, "adamw"), shard ? 3 : 1);
    });
  }
}

}  // namespace
}  // namespace twinstream
