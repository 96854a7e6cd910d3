// Backward of a residual site on the CPU: through the read of the block after, then through the
// write of the block before, row by row.
#include <algorithm>
#include <vector>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/residual_rows.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using X = ResidualRead::X;
using Y = ResidualWrite::Y;

// Of one vector of both streams.
struct StreamGradients {
  Vector dx, dy;
};

// A normed (or weighted) term z = scale . weight . v of a row, where scale = 1 / sqrt(mean(v^2) +
// eps), or a constant, and its backward: from the gradient dz,
//   dweight += scale v dz,   dv = scale weight dz - v scale^3 mean(weight dz v)
// in two loops: the mean is of all the row.
struct NormTerm {
  const float* weight = nullptr;
  float scale = 1;
  float* dweight = nullptr;
  bool normalises = true;

  // Adds to dweight, and to the sums that make the mean.
  template <class At>
  void AddSums(At at, Vector v, Vector dz, Vector& sums) const {
    const Vector vdz = v * dz;
    at.Store(MultiplyAdd(AllLanes(scale), vdz, at.Load(dweight)), dweight);
    sums = MultiplyAdd(at.Load(weight), vdz, sums);
  }
  // Of v in dv.
  float Part(Vector sums, int64_t C) const {
    return normalises ? scale * scale * scale * SumOfLanes(sums) / static_cast<float>(C) : 0;
  }
  template <class At>
  Vector Gradient(At at, Vector v, Vector dz, float v_part) const {
    return MultiplyAdd(scale * at.Load(weight), dz, -v_part * v);
  }
};

// Row n of what the site reads, [C] each, or null.
template <class T>
struct InputRows {
  const T *x, *y, *dh, *dx, *dy;

  template <class At>
  void Prefetch(At at) const {
    for (const T* row : {x, y, dh, dx, dy}) at.Prefetch(row);
  }

  // Of the base and of y.
  template <class At>
  StreamGradients Gradients(At at) const {
    return {at.Load(dx), dy != nullptr ? at.Load(dy) : Vector{}};
  }
};

// One row of a read: how both streams enter it, and what sums over the row gave. Loops hold a copy:
// what a reference leads to would be loaded again after every store.
template <class T>
struct ReadRow {
  ResidualRead read;
  bool weights_x;  // UsesXWeight(read)
  StreamSum sum;
  NormTerm x_term, y_term, u_term;
  InputRows<T> in;
  float* u;  // [C], of a read with an input norm
  float x_part = 0, y_part = 0, u_part = 0;

  template <class At>
  Vector U(At at) const {
    const Vector x = read.x != X::kNone ? at.Load(in.x) : Vector{};
    return sum.Of(at, x, read.y ? at.Load(in.y) : Vector{});
  }

  // The gradient of u.
  template <class At>
  Vector Du(At at) const {
    const Vector dh = at.Load(in.dh);
    return read.input_norm ? u_term.Gradient(at, at.Load(u), dh, u_part) : dh;
  }

  // The gradient of what x's weight multiplied: of its term of u, of the base, or of both.
  template <class At>
  Vector WeightedGradient(At at, Vector du) const {
    if (!read.base_norm) return du;
    return read.x == X::kBase ? du + at.Load(in.dx) : at.Load(in.dx);
  }

  // The gradients of the streams, rounded: where a stage begins with the read they are messages,
  // and no bit may depend on that.
  template <class At>
  StreamGradients Through(At at) const {
    const Vector du = Du(at);
    StreamGradients d = in.Gradients(at);
    if (weights_x) {
      const Vector direct = x_term.Gradient(at, at.Load(in.x), WeightedGradient(at, du), x_part);
      d.dx = read.base_norm ? direct : d.dx + direct;
    } else if (read.x == X::kBase) {
      d.dx += du;
    }
    if (read.y) d.dy += y_term.Gradient(at, at.Load(in.y), du, y_part);
    return {RoundedTo<T>(d.dx), RoundedTo<T>(d.dy)};
  }

  // What the forward read.
  template <class At>
  Vector H(At at) const {
    return read.input_norm ? u_term.scale * at.Load(u_term.weight) * at.Load(u) : U(at);
  }
};

// The gradients of the streams before the write, and dp, from those of the streams after.
struct WriteGradients {
  StreamGradients streams;
  Vector dp;
};

WriteGradients ThroughWrite(const ResidualWrite& write, const StreamGradients& d) {
  const Vector base_gain = AllLanes(write.base_gain), x_gain = AllLanes(write.x_gain);
  switch (write.y) {
    case Y::kKeep:
      return {{base_gain * d.dx, d.dy}, x_gain * d.dx};
    case Y::kAdd:
      return {{base_gain * d.dx, d.dy}, MultiplyAdd(x_gain, d.dx, d.dy)};
    case Y::kSet:
      return {{MultiplyAdd(base_gain, d.dx, d.dy), Vector{}}, MultiplyAdd(x_gain, d.dx, d.dy)};
  }
  Die("unknown write of y");
}

// What the rows of one range share: sums of weight gradients, and a row for u, then for dp, each
// [C].
struct RangeBuffers {
  float *dx_weight, *dy_weight, *dinput_weight, *doutput_weight, *u;
};
constexpr int64_t kRangeRows = 5;

template <class T>
class BackwardSite {
 public:
  BackwardSite(const ResidualSite& site, const ResidualBackwardTensors& t)
      : site_(site), t_(t), N_(t.dx.dim(0)), C_(t.dx.dim(1)), stride_((C_ + 31) / 16 * 16) {}

  void Run() const {
    constexpr int64_t kWorkPerElement = 16;
    const int64_t ranges = RangeCount(N_, GrainFor(kWorkPerElement * C_));
    thread_local std::vector<float> memory;  // grows to the widest site, and stays
    const size_t floats = static_cast<size_t>(ranges * kRangeRows * stride_);
    memory.resize(std::max(memory.size(), floats));
    std::fill_n(memory.begin(), floats, 0.0F);
    float* const buffers = memory.data();
    ParallelRanges(N_, ranges, [this, buffers](int64_t range, int64_t begin, int64_t end) {
      const RangeBuffers mine = BuffersOf(buffers, range);
      for (int64_t n = begin; n < end; ++n) Row(n, mine);
    });
    for (int64_t range = 0; range < ranges; ++range) AddGradients(BuffersOf(buffers, range));
  }

 private:
  RangeBuffers BuffersOf(float* buffers, int64_t range) const {
    float* const rows = buffers + range * kRangeRows * stride_;
    return {.dx_weight = rows,
            .dy_weight = rows + stride_,
            .dinput_weight = rows + 2 * stride_,
            .doutput_weight = rows + 3 * stride_,
            .u = rows + 4 * stride_};
  }

  void AddGradients(const RangeBuffers& range) const {
    const auto add = [this](Tensor gradient, const float* sums) {
      if (!gradient) return;
      VectorLoop(C_, [to = gradient.As<float>(), sums](int64_t j) { to[j] += sums[j]; });
    };
    add(t_.dx_weight, range.dx_weight);
    add(t_.dy_weight, range.dy_weight);
    add(t_.dinput_weight, range.dinput_weight);
    add(t_.doutput_weight, range.doutput_weight);
  }

  float Scale(ResidualScale which, int64_t n) const { return RowOf<float>(t_.scales, which)[n]; }

  InputRows<T> InputsOf(int64_t n) const {
    return {RowOf<T>(t_.x, n), RowOf<T>(t_.y, n), RowOf<T>(t_.dh, n), RowOf<T>(t_.dx, n),
            RowOf<T>(t_.dy, n)};
  }

  ReadRow<T> ReadRowOf(int64_t n, const ResidualRead& read, const RangeBuffers& buffers) const {
    const float *const x_weight = WeightOf(t_.x_weight), *const y_weight = WeightOf(t_.y_weight);
    ReadRow<T> row = {.read = read,
                      .weights_x = UsesXWeight(read),
                      .sum = SumOfRead(read, x_weight, y_weight),
                      .x_term = {x_weight, 1, buffers.dx_weight, NormalisesX(read)},
                      .y_term = {y_weight, 1, buffers.dy_weight},
                      .u_term = {WeightOf(t_.input_weight), 1, buffers.dinput_weight},
                      .in = InputsOf(n),
                      .u = buffers.u};
    if (NormalisesX(read)) row.sum.x_scale = row.x_term.scale = Scale(kScaleX, n);
    if (read.y) row.sum.y_scale = row.y_term.scale = Scale(kScaleY, n);
    if (read.input_norm) {
      row.u_term.scale = Scale(kScaleInput, n);
      SumInputTerm(row);
    }
    SumStreamTerms(row);
    return row;
  }

  // row.u <- u. The gradient of the input norm's weight, and the mean of its backward.
  void SumInputTerm(ReadRow<T>& row) const {
    Vector sums = {};
    ForVectors(C_, [row, &sums](auto at) {
      const Vector u = at.Store(row.U(at), row.u);
      row.u_term.AddSums(at, u, at.Load(row.in.dh), sums);
    });
    row.u_part = row.u_term.Part(sums, C_);
  }

  // The same of both streams.
  void SumStreamTerms(ReadRow<T>& row) const {
    if (!row.weights_x && !row.read.y) return;
    Vector x_sums = {}, y_sums = {};
    ForVectors(C_, [row, &x_sums, &y_sums](auto at) {
      const Vector du = row.Du(at);
      if (row.weights_x) {
        row.x_term.AddSums(at, at.Load(row.in.x), row.WeightedGradient(at, du), x_sums);
      }
      if (row.read.y) row.y_term.AddSums(at, at.Load(row.in.y), du, y_sums);
    });
    row.x_part = row.x_term.Part(x_sums, C_);
    row.y_part = row.y_term.Part(y_sums, C_);
  }

  void Row(int64_t n, const RangeBuffers& buffers) const {
    if (site_.read == nullptr) {
      return Write(n, buffers, [in = InputsOf(n)](auto at) { return in.Gradients(at); });
    }
    const ReadRow<T> row = ReadRowOf(n, *site_.read, buffers);
    T* const h = RowOf<T>(t_.h, n);
    Write(n, buffers, [row, h, next = InputsOf(n + 1)](auto at) {
      next.Prefetch(at);
      const StreamGradients d = row.Through(at);
      // In y's place perhaps: nothing else reads the streams of this vector any more.
      if (h != nullptr) at.Store(row.H(at), h);
      return d;
    });
  }

  // Through the write, and stores the row. gradients(at): of the streams after it.
  template <class F>
  void Write(int64_t n, const RangeBuffers& buffers, F gradients) const {
    T *const dx = RowOf<T>(t_.dx, n), *const dy = RowOf<T>(t_.dy, n);
    const auto put = [=](auto at, const StreamGradients& d) {
      at.Store(d.dx, dx);
      if (dy != nullptr) at.Store(d.dy, dy);
    };
    if (site_.write == nullptr) return ForVectors(C_, [=](auto at) { put(at, gradients(at)); });
    const ResidualWrite write = *site_.write;
    T* const d_o = RowOf<T>(t_.d_o, n);
    if (!write.output_norm) {
      return ForVectors(C_, [=](auto at) {
        const WriteGradients d = ThroughWrite(write, gradients(at));
        put(at, d.streams);
        at.Store(d.dp, d_o);
      });
    }
    const NormTerm p = {WeightOf(t_.output_weight), Scale(kScaleOutput, n), buffers.doutput_weight};
    const T* const o = RowOf<T>(t_.o, n);
    float* const dp = buffers.u;
    Vector sums = {};
    ForVectors(C_, [=, &sums](auto at) {
      const WriteGradients d = ThroughWrite(write, gradients(at));
      put(at, d.streams);
      at.Store(d.dp, dp);
      p.AddSums(at, at.Load(o), d.dp, sums);
    });
    const float part = p.Part(sums, C_);
    ForVectors(C_, [=](auto at) { at.Store(p.Gradient(at, at.Load(o), at.Load(dp), part), d_o); });
  }

  const ResidualSite& site_;
  const ResidualBackwardTensors& t_;
  const int64_t N_, C_;
  // Floats from one buffer to the next: whole cache lines, and one more than C needs, or rows of a
  // power of two would compete for the same places in the cache.
  const int64_t stride_;
};

}  // namespace

void CpuOps::ResidualBackward(const ResidualSite& site, const ResidualBackwardTensors& t) const {
  CheckResidualBackward(site, t);
  WithActivationType(t.dx.dtype(),
                     [&]<class T>(std::type_identity<T>) { BackwardSite<T>(site, t).Run(); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
