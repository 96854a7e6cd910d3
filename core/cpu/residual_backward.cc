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

// Backward of one row of z = scale . weight . v, where scale = 1 / sqrt(mean(v^2) + eps) if
// normalises, else constant. The gradient of z mixes two rows and that of v is added to, all [C]:
//   dz = du_part du + dv_part dv,   dweight += scale v dz,
//   dv <- dv_kept dv + scale weight dz - v scale^3 mean(weight dz v)
// du, dv and v may be the same memory. Each is a row of activations or of float32 temporaries.
template <class V, class Du, class Dv>
struct TermBackward {
  const V* v = nullptr;
  const float* weight = nullptr;
  float scale = 1;
  bool normalises = true;
  const Du* du = nullptr;
  Dv* dv = nullptr;
  float* dweight = nullptr;
  float du_part = 1;
  float dv_part = 0;
  float dv_kept = 1;

  float Dz(int64_t j) const { return du_part * du[j] + dv_part * dv[j]; }
};

template <class V, class Du, class Dv>
void Backward(const TermBackward<V, Du, Dv>& term, int64_t C) {
  const float sum = VectorSum(C, [=](int64_t j) {
    const float vdz = term.v[j] * term.Dz(j);
    term.dweight[j] += term.scale * vdz;
    return term.weight[j] * vdz;
  });
  const float scale = term.scale;
  const float v_part = term.normalises ? scale * scale * scale * sum / static_cast<float>(C) : 0.0F;
  VectorLoop(C, [=](int64_t j) {
    const float direct = scale * term.weight[j] * term.Dz(j);
    term.dv[j] = term.dv_kept * term.dv[j] + direct - v_part * term.v[j];
  });
}

// One row of a write's backward; dx, dy in place.
template <Y kY, class T, class Dp>
void WriteBackward(float base_gain, float x_gain, T* dx, T* dy, Dp* dp, int64_t C) {
  VectorLoop(C, [=](int64_t j) {
    const float dx_after = dx[j];
    float dp_j = x_gain * dx_after, dbase = base_gain * dx_after;
    if constexpr (kY != Y::kKeep) dp_j += dy[j];
    if constexpr (kY == Y::kSet) {
      dbase += dy[j];
      dy[j] = 0.0F;
    }
    dp[j] = dp_j;
    dx[j] = dbase;
  });
}

template <class T, class Dp>
void WriteBackward(const ResidualWrite& write, T* dx, T* dy, Dp* dp, int64_t C) {
  switch (write.y) {
    case Y::kKeep:
      return WriteBackward<Y::kKeep>(write.base_gain, write.x_gain, dx, dy, dp, C);
    case Y::kAdd:
      return WriteBackward<Y::kAdd>(write.base_gain, write.x_gain, dx, dy, dp, C);
    case Y::kSet:
      return WriteBackward<Y::kSet>(write.base_gain, write.x_gain, dx, dy, dp, C);
  }
}

// What the rows of one range share: sums of weight gradients, and a row for u, then for dp, and one
// for du, each [C].
struct RangeBuffers {
  float *dx_weight, *dy_weight, *dinput_weight, *doutput_weight;
  float *u, *du;
};
constexpr int64_t kRangeRows = 6;

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
      for (int64_t n = begin; n < end; ++n) {
        if (site_.read != nullptr) ReadRow(n, *site_.read, mine);
        if (site_.write != nullptr) WriteRow(n, *site_.write, mine);
      }
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
            .u = rows + 4 * stride_,
            .du = rows + 5 * stride_};
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

  StreamRow<T> Streams(int64_t n, const ResidualRead& read) const {
    StreamRow<T> row = {.x = RowOf<T>(t_.x, n),
                        .x_weight = WeightOf(t_.x_weight),
                        .y = RowOf<T>(t_.y, n),
                        .y_weight = WeightOf(t_.y_weight)};
    if (NormalisesX(read)) row.x_scale = Scale(kScaleX, n);
    if (read.y) row.y_scale = Scale(kScaleY, n);
    return row;
  }

  void ReadRow(int64_t n, const ResidualRead& read, const RangeBuffers& buffers) const {
    const StreamRow<T> row = Streams(n, read);
    if (read.input_norm) {
      InputNormBackward(n, read, row, buffers);
      StreamsBackward<float>(n, read, row, buffers.du, buffers);
    } else {
      StreamsBackward<T>(n, read, row, RowOf<T>(t_.dh, n), buffers);
    }
    if (t_.h) WriteInput(n, read, row, buffers.u);
  }

  // h takes y's place perhaps: nothing reads the streams of this row any more. u: of a normed read.
  void WriteInput(int64_t n, const ResidualRead& read, const StreamRow<T>& row,
                  const float* u) const {
    T* const h = RowOf<T>(t_.h, n);
    if (!read.input_norm) return SumStreams(row, read, h, C_);
    NormSum(u, WeightOf(t_.input_weight), Scale(kScaleInput, n), h, C_);
  }

  // buffers.u <- u, the sum of the streams; buffers.du <- du, the gradient of u from that of
  // h = scale . weight . u: Backward's equation, in the loop that sums u.
  void InputNormBackward(int64_t n, const ResidualRead& read, const StreamRow<T>& row,
                         const RangeBuffers& buffers) const {
    const T* const dh = RowOf<T>(t_.dh, n);
    const float* const weight = WeightOf(t_.input_weight);
    const float scale = Scale(kScaleInput, n);
    float* const u_row = buffers.u;
    const float sum = WithConstant(XTermOf(read), [&](auto kX) {
      return WithConstant(read.y, [&](auto kY) {
        return VectorSum(C_, [=, dweight = buffers.dinput_weight](int64_t j) {
          const float u = row.template Sum<kX(), kY()>(j);
          u_row[j] = u;
          const float udh = u * dh[j];
          dweight[j] += scale * udh;
          return weight[j] * udh;
        });
      });
    });
    const float u_part = scale * scale * scale * sum / static_cast<float>(C_);
    VectorLoop(C_, [=, du = buffers.du](int64_t j) {
      du[j] = scale * weight[j] * dh[j] - u_part * u_row[j];
    });
  }

  template <class Du>
  void StreamsBackward(int64_t n, const ResidualRead& read, const StreamRow<T>& row, const Du* du,
                       const RangeBuffers& buffers) const {
    XBackward(read, row, du, RowOf<T>(t_.dx, n), buffers.dx_weight);
    if (!read.y) return;
    Backward<T, Du, T>({.v = row.y,
                        .weight = row.y_weight,
                        .scale = row.y_scale,
                        .du = du,
                        .dv = RowOf<T>(t_.dy, n),
                        .dweight = buffers.dy_weight},
                       C_);
  }

  // du reaches x through its term of u, and dx (of the base) through base_norm.
  template <class Du>
  void XBackward(const ResidualRead& read, const StreamRow<T>& row, const Du* du, T* dx,
                 float* dx_weight) const {
    TermBackward<T, Du, T> term = {.v = row.x,
                                   .weight = row.x_weight,
                                   .scale = row.x_scale,
                                   .du = du,
                                   .dv = dx,
                                   .dweight = dx_weight};
    if (read.base_norm) {
      term.du_part = read.x == X::kBase ? 1 : 0;
      term.dv_part = 1;
      term.dv_kept = 0;
      return Backward(term, C_);
    }
    switch (read.x) {
      case X::kNone:
        return;
      case X::kBase:
        return VectorLoop(C_, [=](int64_t j) { dx[j] = dx[j] + du[j]; });
      case X::kScale:
        term.normalises = false;
        return Backward(term, C_);
      case X::kNorm:
        return Backward(term, C_);
    }
  }

  void WriteRow(int64_t n, const ResidualWrite& write, const RangeBuffers& buffers) const {
    T *const dx = RowOf<T>(t_.dx, n), *const dy = RowOf<T>(t_.dy, n),
             *const d_o = RowOf<T>(t_.d_o, n);
    if (!write.output_norm) return WriteBackward(write, dx, dy, d_o, C_);
    float* const dp = buffers.u;
    WriteBackward(write, dx, dy, dp, C_);
    Backward<T, float, float>({.v = RowOf<T>(t_.o, n),
                               .weight = WeightOf(t_.output_weight),
                               .scale = Scale(kScaleOutput, n),
                               .du = dp,
                               .dv = dp,
                               .dweight = buffers.doutput_weight,
                               .dv_kept = 0},
                              C_);
    VectorLoop(C_, [=](int64_t j) { d_o[j] = dp[j]; });
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
