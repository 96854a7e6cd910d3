// Forward of a residual site on the CPU: the write of the block before, then the read of the block
// after, row by row.
#include <cmath>
#include <cstring>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/residual_rows.h"
#include "core/cpu/vector_math.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using Y = ResidualWrite::Y;

// One row of a write.
template <class T>
struct WriteRow {
  const T* x = nullptr;             // [C] before
  const float* x_weight = nullptr;  // [C] of the base's norm
  float x_scale = 1;                // of the base's norm
  const T* y = nullptr;             // [C] before; not for Y::kSet
  const T* o = nullptr;             // [C]
  const float* o_weight = nullptr;  // [C] of the output norm
  float o_scale = 1;                // of the output norm
  float base_gain = 1;
  float x_gain = 1;
  T* x_out = nullptr;  // [C]
  T* y_out = nullptr;  // [C]
};

template <bool kBaseNorm, bool kOutputNorm, Y kY, class T>
void Write(const WriteRow<T>& row, int64_t C) {
  VectorLoop(C, [row](int64_t j) {
    float base = row.x[j], p = row.o[j];
    if constexpr (kBaseNorm) base *= row.x_scale * row.x_weight[j];
    if constexpr (kOutputNorm) p *= row.o_scale * row.o_weight[j];
    row.x_out[j] = row.base_gain * base + row.x_gain * p;
    if constexpr (kY == Y::kAdd) row.y_out[j] = row.y[j] + p;
    if constexpr (kY == Y::kSet) row.y_out[j] = base + p;
  });
}

template <class T>
void Write(bool base_norm, bool output_norm, Y y, const WriteRow<T>& row, int64_t C) {
  WithConstant(base_norm, [&](auto kBaseNorm) {
    WithConstant(output_norm, [&](auto kOutputNorm) {
      switch (y) {
        case Y::kKeep:
          Write<kBaseNorm(), kOutputNorm(), Y::kKeep>(row, C);
          if (row.y_out != row.y) std::memcpy(row.y_out, row.y, static_cast<size_t>(C) * sizeof(T));
          return;
        case Y::kAdd:
          return Write<kBaseNorm(), kOutputNorm(), Y::kAdd>(row, C);
        case Y::kSet:
          return Write<kBaseNorm(), kOutputNorm(), Y::kSet>(row, C);
      }
    });
  });
}

float InverseRms(float sum_of_squares, int64_t C, float eps) {
  return 1 / std::sqrt(sum_of_squares / static_cast<float>(C) + eps);
}

// Of one row v [C].
template <class T>
float RowScale(const T* v, int64_t C, float eps) {
  const auto square = [v](int64_t j) {
    const float v_j = v[j];
    return v_j * v_j;
  };
  return InverseRms(VectorSum(C, square), C, eps);
}

struct InputNorm {
  const float* weight;  // [C]
  float eps;
  float* u_row;  // [C], for the sum of the streams
};

// h = N_in(u). Returns the scale of the norm.
template <class T>
float ReadNormedSum(const StreamRow<T>& row, const ResidualRead& read, const InputNorm& norm, T* h,
                    int64_t C) {
  const float sum_of_squares = WithConstant(XTermOf(read), [&](auto kX) {
    return WithConstant(read.y, [&](auto kY) {
      return VectorSum(C, [=, u_row = norm.u_row](int64_t j) {
        const float u = row.template Sum<kX(), kY()>(j);
        u_row[j] = u;
        return u * u;
      });
    });
  });
  const float scale = InverseRms(sum_of_squares, C, norm.eps);
  NormSum(norm.u_row, norm.weight, scale, h, C);
  return scale;
}

template <class T>
class ForwardSite {
 public:
  ForwardSite(const ResidualSite& site, const ResidualForwardTensors& t)
      : site_(site), t_(t), N_(t.x.dim(0)), C_(t.x.dim(1)) {}

  void Run() const {
    constexpr int64_t kWorkPerElement = 8;
    ParallelRows(N_, GrainFor(kWorkPerElement * C_), [this](int64_t begin, int64_t end) {
      float* const u_row = ThreadScratch<ForwardSite>(C_);
      for (int64_t n = begin; n < end; ++n) {
        if (site_.write != nullptr) WriteStreams(n, *site_.read_before, *site_.write);
        if (site_.read != nullptr) ReadStreams(n, *site_.read, u_row);
      }
    });
  }

 private:
  // The streams that the read finds.
  Tensor StoredX() const { return site_.write != nullptr ? t_.x_out : t_.x; }
  Tensor StoredY() const { return site_.write != nullptr ? t_.y_out : t_.y; }

  float& Scale(ResidualScale which, int64_t n) const { return RowOf<float>(t_.scales, which)[n]; }

  void WriteStreams(int64_t n, const ResidualRead& before, const ResidualWrite& write) const {
    WriteRow<T> row = {.x = RowOf<T>(t_.x, n),
                       .x_weight = WeightOf(t_.x_weight_before),
                       .y = RowOf<T>(t_.y, n),
                       .o = RowOf<T>(t_.o, n),
                       .o_weight = WeightOf(t_.output_weight),
                       .base_gain = write.base_gain,
                       .x_gain = write.x_gain,
                       .x_out = RowOf<T>(t_.x_out, n),
                       .y_out = RowOf<T>(t_.y_out, n)};
    if (before.base_norm) row.x_scale = RowOf<float>(t_.scales_before, kScaleX)[n];
    if (write.output_norm) row.o_scale = Scale(kScaleOutput, n) = RowScale(row.o, C_, site_.eps);
    Write(before.base_norm, write.output_norm, write.y, row, C_);
  }

  // u_row: [C], overwritten.
  void ReadStreams(int64_t n, const ResidualRead& read, float* u_row) const {
    StreamRow<T> row = {.x = RowOf<T>(StoredX(), n),
                        .x_weight = WeightOf(t_.x_weight),
                        .y = RowOf<T>(StoredY(), n),
                        .y_weight = WeightOf(t_.y_weight)};
    if (NormalisesX(read)) row.x_scale = Scale(kScaleX, n) = RowScale(row.x, C_, site_.eps);
    if (read.y) row.y_scale = Scale(kScaleY, n) = RowScale(row.y, C_, site_.eps);
    T* const h = RowOf<T>(t_.h, n);
    if (read.input_norm) {
      Scale(kScaleInput, n) =
          ReadNormedSum(row, read, {WeightOf(t_.input_weight), site_.eps, u_row}, h, C_);
    } else {
      SumStreams(row, read, h, C_);
    }
  }

  const ResidualSite& site_;
  const ResidualForwardTensors& t_;
  const int64_t N_, C_;
};

}  // namespace

void CpuOps::ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const {
  CheckResidualForward(site, t);
  WithActivationType(t.x.dtype(),
                     [&]<class T>(std::type_identity<T>) { ForwardSite<T>(site, t).Run(); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
