// Forward of a residual site on the CPU: the write of the block before, then the read of the block
// after, row by row.
#include <cmath>
#include <cstdint>

#include "core/activation_type.h"
#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/residual_rows.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

using Y = ResidualWrite::Y;

// Row n of the streams as the read finds them, widened, and their sums of squares.
struct ReadRow {
  int64_t n;
  float *x, *y;  // [C]; y where there is such a stream
  float x_squares = 0, y_squares = 0;
};

template <class T>
class ForwardSite {
 public:
  ForwardSite(const ResidualSite& site, const ResidualForwardTensors& t)
      : site_(site),
        t_(t),
        N_(t.x.dim(0)),
        C_(t.x.dim(1)),
        non_temporal_(site.write != nullptr && IsOfWholeVectors(t.x_out) &&
                      (!t.y_out || IsOfWholeVectors(t.y_out))) {}

  void Run() const {
    constexpr int64_t kWorkPerElement = 8;
    const int64_t stride = (C_ + kVectorLanes - 1) / kVectorLanes * kVectorLanes;
    ParallelRows(N_, GrainFor(kWorkPerElement * C_), [=, this](int64_t begin, int64_t end) {
      float* const rows = ThreadScratch<ForwardSite>(2 * stride);
      for (int64_t n = begin; n < end; ++n) {
        ReadRow row = {.n = n, .x = rows, .y = rows + stride};
        if (site_.write != nullptr) {
          Write(*site_.read_before, *site_.write, row);
        } else if (site_.read != nullptr) {
          Load(*site_.read, row);
        }
        if (site_.read != nullptr) Read(*site_.read, row);
      }
      FenceNonTemporal();
    });
  }

 private:
  // [C] each, or null.
  struct InputRows {
    const T *x, *y, *o;
  };
  InputRows RowsOf(int64_t n) const {
    return {RowOf<T>(t_.x, n), RowOf<T>(t_.y, n), RowOf<T>(t_.o, n)};
  }

  float& Scale(ResidualScale which, int64_t n) const { return RowOf<float>(t_.scales, which)[n]; }

  float InverseRms(float sum_of_squares) const {
    return 1 / std::sqrt(sum_of_squares / static_cast<float>(C_) + site_.eps);
  }

  // Whether all rows of the matrix are whole vectors, aligned to them, as non-temporal stores ask.
  bool IsOfWholeVectors(Tensor matrix) const {
    return C_ % kVectorLanes == 0 &&
           reinterpret_cast<uintptr_t>(matrix.data()) % (kVectorLanes * sizeof(T)) == 0;
  }

  float OutputScale(const T* o) const {
    Vector squares = {};
    ForVectors(C_, [&](auto at) {
      const Vector v = at.Load(o);
      squares = MultiplyAdd(v, v, squares);
    });
    return InverseRms(SumOfLanes(squares));
  }

  // The streams are not read again before the next site, so they are stored past the caches.
  void Write(const ResidualRead& before, const ResidualWrite& write, ReadRow& row) const {
    const int64_t n = row.n;
    const InputRows in = RowsOf(n);
    T *const x_out = RowOf<T>(t_.x_out, n), *const y_out = RowOf<T>(t_.y_out, n);
    const float *const x_weight = WeightOf(t_.x_weight_before), *const o_weight =
                                                                    WeightOf(t_.output_weight);
    const float x_scale = before.base_norm ? RowOf<float>(t_.scales_before, kScaleX)[n] : 1;
    float o_scale = 1;
    if (write.output_norm) o_scale = Scale(kScaleOutput, n) = OutputScale(in.o);
    const auto put = [this](auto at, Vector v, T* to) {
      return non_temporal_ ? at.StoreNonTemporal(v, to) : at.Store(v, to);
    };
    Vector x_squares = {}, y_squares = {};
    ForVectors(C_, [&](auto at) {
      Vector base = at.Load(in.x), p = at.Load(in.o);
      if (before.base_norm) base *= x_scale * at.Load(x_weight);
      if (write.output_norm) p *= o_scale * at.Load(o_weight);
      const Vector x_next =
          put(at, MultiplyAdd(AllLanes(write.base_gain), base, write.x_gain * p), x_out);
      at.Store(x_next, row.x);
      x_squares = MultiplyAdd(x_next, x_next, x_squares);
      if (y_out == nullptr) return;
      Vector y_next = write.y == Y::kSet ? base + p : at.Load(in.y);
      if (write.y == Y::kAdd) y_next += p;
      y_next = put(at, y_next, y_out);
      at.Store(y_next, row.y);
      y_squares = MultiplyAdd(y_next, y_next, y_squares);
    });
    row.x_squares = SumOfLanes(x_squares);
    row.y_squares = SumOfLanes(y_squares);
  }

  void Load(const ResidualRead& read, ReadRow& row) const {
    const auto load = [this](const T* from, float* to) {
      Vector squares = {};
      ForVectors(C_, [&](auto at) {
        const Vector v = at.Load(from);
        at.Store(v, to);
        squares = MultiplyAdd(v, v, squares);
      });
      return SumOfLanes(squares);
    };
    row.x_squares = load(RowOf<T>(t_.x, row.n), row.x);
    if (read.y) row.y_squares = load(RowOf<T>(t_.y, row.n), row.y);
  }

  void Read(const ResidualRead& read, const ReadRow& row) const {
    const int64_t n = row.n;
    const float *const x = row.x, *const y = row.y;
    StreamSum sum = SumOfRead(read, WeightOf(t_.x_weight), WeightOf(t_.y_weight));
    if (NormalisesX(read)) sum.x_scale = Scale(kScaleX, n) = InverseRms(row.x_squares);
    if (read.y) sum.y_scale = Scale(kScaleY, n) = InverseRms(row.y_squares);
    T* const h = RowOf<T>(t_.h, n);
    const auto u_at = [=](auto at) {
      return sum.Of(at, at.Load(x), read.y ? at.Load(y) : Vector{});
    };
    const auto put = [=, next = RowsOf(n + 1)](auto at, Vector h_at) {
      at.Store(h_at, h);
      at.Prefetch(next.x);
      at.Prefetch(next.y);
      at.Prefetch(next.o);
    };
    if (!read.input_norm) return ForVectors(C_, [=](auto at) { put(at, u_at(at)); });
    float* const u_row = row.x;
    Vector squares = {};
    ForVectors(C_, [=, &squares](auto at) {
      const Vector u = at.Store(u_at(at), u_row);
      squares = MultiplyAdd(u, u, squares);
    });
    const float scale = Scale(kScaleInput, n) = InverseRms(SumOfLanes(squares));
    ForVectors(C_, [=, weight = WeightOf(t_.input_weight)](auto at) {
      put(at, scale * at.Load(weight) * at.Load(u_row));
    });
  }

  const ResidualSite& site_;
  const ResidualForwardTensors& t_;
  const int64_t N_, C_;
  const bool non_temporal_;
};

}  // namespace

void CpuOps::ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const {
  CheckResidualForward(site, t);
  WithActivationType(t.x.dtype(),
                     [&]<class T>(std::type_identity<T>) { ForwardSite<T>(site, t).Run(); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
