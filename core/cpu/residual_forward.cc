// Forward of a residual site on the CPU: the write of the block before, then the read of the block
// after, row by row.
#include <cmath>
#include <cstring>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/residual_rows.h"
#include "core/cpu/vector_math.h"

namespace twinstream {
namespace {

using Y = ResidualWrite::Y;

// One row of a write.
struct WriteRow {
  const float* x = nullptr;         // [C] before
  const float* x_weight = nullptr;  // [C] of the base's norm
  float x_scale = 1;                // of the base's norm
  const float* y = nullptr;         // [C] before; not for Y::kSet
  const float* o = nullptr;         // [C]
  const float* o_weight = nullptr;  // [C] of the output norm
  float o_scale = 1;                // of the output norm
  float base_gain = 1;
  float x_gain = 1;
  float* x_out = nullptr;  // [C]
  float* y_out = nullptr;  // [C]
};

template <bool kBaseNorm, bool kOutputNorm, Y kY>
void Write(const WriteRow& row, int64_t C) {
  VectorLoop(C, [row](int64_t j) {
    float base = row.x[j], p = row.o[j];
    if constexpr (kBaseNorm) base *= row.x_scale * row.x_weight[j];
    if constexpr (kOutputNorm) p *= row.o_scale * row.o_weight[j];
    row.x_out[j] = row.base_gain * base + row.x_gain * p;
    if constexpr (kY == Y::kAdd) row.y_out[j] = row.y[j] + p;
    if constexpr (kY == Y::kSet) row.y_out[j] = base + p;
  });
}

void Write(bool base_norm, bool output_norm, Y y, const WriteRow& row, int64_t C) {
  WithConstant(base_norm, [&](auto kBaseNorm) {
    WithConstant(output_norm, [&](auto kOutputNorm) {
      switch (y) {
        case Y::kKeep:
          Write<kBaseNorm(), kOutputNorm(), Y::kKeep>(row, C);
          if (row.y_out != row.y)
            std::memcpy(row.y_out, row.y, static_cast<size_t>(C) * sizeof(float));
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
float RowScale(const float* v, int64_t C, float eps) {
  return InverseRms(VectorSum(C, [v](int64_t j) { return v[j] * v[j]; }), C, eps);
}

// h = N_in(u). Returns the scale of the norm.
float ReadNormedSum(const StreamRow& row, XTerm x, bool y, const float* weight, float eps, float* h,
                    int64_t C) {
  const float sum_of_squares = WithConstant(x, [&](auto kX) {
    return WithConstant(y, [&](auto kY) {
      return VectorSum(C, [=](int64_t j) {
        const float u = row.Sum<kX(), kY()>(j);
        h[j] = u;
        return u * u;
      });
    });
  });
  const float scale = InverseRms(sum_of_squares, C, eps);
  VectorLoop(C, [=](int64_t j) { h[j] *= scale * weight[j]; });
  return scale;
}

class ForwardSite {
 public:
  ForwardSite(const ResidualSite& site, const ResidualForwardTensors& t)
      : site_(site), t_(t), N_(t.x.dim(0)), C_(t.x.dim(1)) {
    CheckMatrix(t.x, N_, C_, "x");
    Check((site.write == nullptr) == (site.read_before == nullptr),
          "a residual write needs the read of its block, and the read its write");
    if (site.write != nullptr) CheckWrite(*site.read_before, *site.write);
    if (site.read != nullptr) CheckRead(*site.read);
  }

  void Run() const {
    constexpr int64_t kWorkPerElement = 8;
    ParallelRows(N_, GrainFor(kWorkPerElement * C_), [this](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        if (site_.write != nullptr) WriteStreams(n, *site_.read_before, *site_.write);
        if (site_.read != nullptr) ReadStreams(n, *site_.read);
      }
    });
  }

 private:
  void CheckWrite(const ResidualRead& before, const ResidualWrite& write) const {
    CheckMatrix(t_.o, N_, C_, "o");
    CheckMatrix(t_.x_out, N_, C_, "x_out");
    if (before.base_norm) {
      CheckWeight(t_.x_weight_before, C_, "x_weight_before");
      CheckMatrix(t_.scales_before, kResidualScales, N_, "scales_before");
    }
    if (write.output_norm) {
      CheckWeight(t_.output_weight, C_, "output_weight");
      CheckMatrix(t_.scales, kResidualScales, N_, "scales");
    }
    if (write.y != Y::kKeep || t_.y) CheckMatrix(t_.y_out, N_, C_, "y_out");
    if (write.y == Y::kAdd || (write.y == Y::kKeep && t_.y_out)) CheckMatrix(t_.y, N_, C_, "y");
  }

  void CheckRead(const ResidualRead& read) const {
    CheckRule(read);
    CheckMatrix(t_.h, N_, C_, "h");
    CheckMatrix(t_.scales, kResidualScales, N_, "scales");
    if (UsesXWeight(read)) CheckWeight(t_.x_weight, C_, "x_weight");
    if (read.y) {
      CheckMatrix(StoredY(), N_, C_, "y");
      CheckWeight(t_.y_weight, C_, "y_weight");
    }
    if (read.input_norm) CheckWeight(t_.input_weight, C_, "input_weight");
  }

  // The streams that the read finds.
  Tensor StoredX() const { return site_.write != nullptr ? t_.x_out : t_.x; }
  Tensor StoredY() const { return site_.write != nullptr ? t_.y_out : t_.y; }

  float& Scale(ResidualScale which, int64_t n) const { return RowOf(t_.scales, which)[n]; }

  void WriteStreams(int64_t n, const ResidualRead& before, const ResidualWrite& write) const {
    WriteRow row = {.x = RowOf(t_.x, n),
                    .x_weight = WeightOf(t_.x_weight_before),
                    .y = RowOf(t_.y, n),
                    .o = RowOf(t_.o, n),
                    .o_weight = WeightOf(t_.output_weight),
                    .base_gain = write.base_gain,
                    .x_gain = write.x_gain,
                    .x_out = RowOf(t_.x_out, n),
                    .y_out = RowOf(t_.y_out, n)};
    if (before.base_norm) row.x_scale = RowOf(t_.scales_before, kScaleX)[n];
    if (write.output_norm) row.o_scale = Scale(kScaleOutput, n) = RowScale(row.o, C_, site_.eps);
    Write(before.base_norm, write.output_norm, write.y, row, C_);
  }

  void ReadStreams(int64_t n, const ResidualRead& read) const {
    StreamRow row = {.x = RowOf(StoredX(), n),
                     .x_weight = WeightOf(t_.x_weight),
                     .y = RowOf(StoredY(), n),
                     .y_weight = WeightOf(t_.y_weight)};
    if (NormalisesX(read)) row.x_scale = Scale(kScaleX, n) = RowScale(row.x, C_, site_.eps);
    if (read.y) row.y_scale = Scale(kScaleY, n) = RowScale(row.y, C_, site_.eps);
    float* const h = RowOf(t_.h, n);
    if (read.input_norm) {
      Scale(kScaleInput, n) =
          ReadNormedSum(row, XTermOf(read), read.y, WeightOf(t_.input_weight), site_.eps, h, C_);
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
  ForwardSite(site, t).Run();
}

}  // namespace twinstream
