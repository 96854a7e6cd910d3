// Forward of a residual site on a CUDA device: the write of the block before, then the read of the
// block after, in one pass. Floor: 3 rows read and 3 written (x, y, o; x', y', h), of one stream 2
// and 2, at the bandwidth of memory. Weights come from the caches.
#include <algorithm>

#include "core/activation_type.h"
#include "core/cuda/ops.h"
#include "core/cuda/residual_rows.h"
#include "core/residual_site.h"

namespace twinstream {
namespace {

using gpu::BlockSums;
using gpu::ForEachPackOfRow;
using gpu::Pack;
using gpu::PackPlace;
using gpu::Row;
using gpu::TemporaryRow;
using X = ResidualRead::X;
using Y = ResidualWrite::Y;

// A site and its tensors (core/ops.h) in the form of one formula: what a site lacks is null, and is
// not read or written, or is a factor of 0.
template <class T>
struct ForwardSite {
  int N = 0, C = 0;
  float eps = 0;
  float* scales = nullptr;       // [4, N]
  float* temporaries = nullptr;  // with kColumns = 0: a row of each block
  int64_t temporary_width = 0;

  // Write, where o is not null.
  //   base = scales_before x_weight_before . x,   p = N_out(o)
  //   x <- base_gain base + x_gain p,             y <- y_kept y + y_base base + y_p p
  const T* x = nullptr;
  const T* y = nullptr;
  const T* o = nullptr;
  const float* x_weight_before = nullptr;
  const float* scales_before = nullptr;  // [N]
  const float* output_weight = nullptr;
  float base_gain = 1, x_gain = 0, y_kept = 1, y_base = 0, y_p = 0;
  T* x_out = nullptr;
  T* y_out = nullptr;  // null where y stays what and where it is

  // Read, where h is not null.
  //   u = x_part x_scale x_weight . x + y_part y_scale y_weight . y,   h = N_in(u)
  bool normalises_x = false;
  float x_part = 0, y_part = 0;  // 0 or 1
  const float* x_weight = nullptr;
  const float* y_weight = nullptr;
  const float* input_weight = nullptr;
  T* h = nullptr;
};

// One row as it passes through a block.
template <class T, int kColumns>
class ForwardRow {
 public:
  __device__ ForwardRow(const ForwardSite<T>& site, int n, BlockSums& sums)
      : site_(site), n_(n), sums_(sums), x_(At(site.x), site.C), y_(At(site.y), site.C) {}

  __device__ void Write() {
    const Row<T, kColumns> o(At(site_.o), site_.C);
    const float o_scale = site_.output_weight == nullptr ? 1.0F : OutputScale(o);
    const float x_scale = site_.scales_before == nullptr ? 1.0F : site_.scales_before[n_];
    Row<T, kColumns> x_after, y_after;
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> x_weight = Weight(site_.x_weight_before, at);
      const Pack<T> o_weight = Weight(site_.output_weight, at);
      Pack<T> x = x_[at], y = y_[at], p = o[at];
      for (int j = 0; j < gpu::kPack<T>; ++j) {
        const float base = x.values[j] * (x_scale * x_weight.values[j]);
        const float p_j = p.values[j] * (o_scale * o_weight.values[j]);
        x.values[j] = site_.base_gain * base + site_.x_gain * p_j;
        y.values[j] = site_.y_kept * y.values[j] + site_.y_base * base + site_.y_p * p_j;
      }
      x_after.Store(At(site_.x_out), site_.C, at, x);
      if (site_.y_out != nullptr) y_after.Store(At(site_.y_out), site_.C, at, y);
    });
    x_ = x_after;
    if (site_.y_out != nullptr) y_ = y_after;
  }

  __device__ void Read() {
    float scales[2] = {1, 1};
    if (site_.normalises_x || site_.y_part != 0) StreamScales(scales);
    const float x_scale = site_.x_part * (site_.normalises_x ? scales[0] : 1.0F);
    const float y_scale = site_.y_part * scales[1];
    TemporaryRow<T, kColumns> u(site_.temporaries + blockIdx.x * site_.temporary_width);
    float squares[1] = {0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> x = x_[at], y = y_[at];
      const Pack<T> x_weight = Weight(site_.x_weight, at), y_weight = Weight(site_.y_weight, at);
      Pack<T> sum;
      for (int j = 0; j < gpu::kPack<T>; ++j) {
        sum.values[j] =
            x_scale * x_weight.values[j] * x.values[j] + y_scale * y_weight.values[j] * y.values[j];
        squares[0] += sum.values[j] * sum.values[j];
      }
      u.Set(at, sum);
    });
    float u_scale = 1;
    if (site_.input_weight != nullptr) {
      sums_.Add(squares);
      u_scale = Scale(kScaleInput, squares[0]);
    }
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> weight = Weight(site_.input_weight, at);
      Pack<T> h = u[at];
      for (int j = 0; j < gpu::kPack<T>; ++j) h.values[j] *= u_scale * weight.values[j];
      gpu::StoreColumns<kColumns>(At(site_.h), site_.C, at, h);
    });
  }

 private:
  template <class Element>
  __device__ Element* At(Element* matrix) const {
    return matrix == nullptr ? nullptr : matrix + int64_t{n_} * site_.C;
  }
  __device__ Pack<T> Weight(const float* weight, PackPlace at) const {
    return gpu::LoadWeight<T, kColumns>(weight, site_.C, at);
  }

  // The scale of a norm over the row, noted for the backward.
  __device__ float Scale(ResidualScale which, float sum_of_squares) const {
    const float mean = sum_of_squares / static_cast<float>(site_.C);
    const float scale = gpu::ReciprocalSqrt(mean + site_.eps);
    if (threadIdx.x == 0) site_.scales[int64_t{which} * site_.N + n_] = scale;
    return scale;
  }

  __device__ float OutputScale(const Row<T, kColumns>& o) {
    float squares[1] = {0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> pack = o[at];
      for (float v : pack.values) squares[0] += v * v;
    });
    sums_.Add(squares);
    return Scale(kScaleOutput, squares[0]);
  }

  // scales <- those of x and y where they are normalised.
  __device__ void StreamScales(float (&scales)[2]) {
    float squares[2] = {0, 0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> x = x_[at], y = y_[at];
      for (float v : x.values) squares[0] += v * v;
      for (float v : y.values) squares[1] += v * v;
    });
    sums_.Add(squares);
    if (site_.normalises_x) scales[0] = Scale(kScaleX, squares[0]);
    if (site_.y_part != 0) scales[1] = Scale(kScaleY, squares[1]);
  }

  const ForwardSite<T>& site_;
  int n_;
  BlockSums& sums_;
  Row<T, kColumns> x_, y_;
};

template <class T, int kColumns>
__global__ void __launch_bounds__(gpu::MaxRowThreads(kColumns))
    ResidualForwardKernel(ForwardSite<T> site) {
  BlockSums sums(gpu::SharedMemory<float>());
  gpu::ForEachRow(site.N, [&](int n) {
    ForwardRow<T, kColumns> row(site, n, sums);
    if (site.o != nullptr) row.Write();
    if (site.h != nullptr) row.Read();
  });
}

template <class T>
T* DataOf(Tensor tensor) {
  return tensor ? tensor.As<T>() : nullptr;
}

template <class T>
void SetWrite(const ResidualRead& before, const ResidualWrite& write,
              const ResidualForwardTensors& t, ForwardSite<T>& site) {
  site.o = t.o.As<T>();
  if (before.base_norm) {
    site.x_weight_before = t.x_weight_before.As<float>();
    site.scales_before = t.scales_before.As<float>() + int64_t{kScaleX} * site.N;
  }
  if (write.output_norm) site.output_weight = t.output_weight.As<float>();
  site.base_gain = write.base_gain;
  site.x_gain = write.x_gain;
  site.y_kept = write.y == Y::kSet ? 0.0F : 1.0F;
  site.y_base = write.y == Y::kSet ? 1.0F : 0.0F;
  site.y_p = write.y == Y::kKeep ? 0.0F : 1.0F;
  site.x_out = t.x_out.As<T>();
  if (write.y == Y::kSet) site.y = nullptr;
  if (write.y != Y::kKeep || t.y_out.data() != t.y.data()) site.y_out = DataOf<T>(t.y_out);
}

template <class T>
ForwardSite<T> ForwardSiteOf(const ResidualSite& site, const ResidualForwardTensors& t) {
  ForwardSite<T> flat = {.N = static_cast<int>(t.x.dim(0)),
                         .C = static_cast<int>(t.x.dim(1)),
                         .eps = site.eps,
                         .scales = DataOf<float>(t.scales),
                         .x = t.x.As<T>(),
                         .y = DataOf<T>(t.y)};
  if (site.write != nullptr) SetWrite(*site.read_before, *site.write, t, flat);
  if (site.read == nullptr) return flat;
  const ResidualRead& read = *site.read;
  flat.normalises_x = NormalisesX(read);
  flat.x_part = read.x == X::kNone ? 0.0F : 1.0F;
  flat.y_part = read.y ? 1.0F : 0.0F;
  if (UsesXWeight(read) && read.x != X::kNone) flat.x_weight = t.x_weight.As<float>();
  if (read.y) flat.y_weight = t.y_weight.As<float>();
  if (read.input_norm) flat.input_weight = t.input_weight.As<float>();
  flat.h = t.h.As<T>();
  return flat;
}

}  // namespace

void CudaOps::ResidualForward(const ResidualSite& site, const ResidualForwardTensors& t) const {
  CheckResidualForward(site, t);
  if (t.x.elements() == 0) return;
  WithActivationType(t.x.dtype(), [&]<class T>(std::type_identity<T>) {
    ForwardSite<T> flat = ForwardSiteOf<T>(site, t);
    const gpu::RowSharing sharing =
        gpu::ShareRows<T>(flat.C, {t.x, t.y, t.o, t.x_weight_before, t.output_weight, t.x_out,
                                   t.y_out, t.x_weight, t.y_weight, t.input_weight, t.h});
    int64_t blocks = flat.N;  // with registers for a row; else so many as there is memory for one
    if (sharing.columns == 0) {
      const int64_t row_bytes = ResidualBytes(1, sharing.padded_width);
      blocks =
          std::clamp<int64_t>(workspace_.bytes / row_bytes, 1, int64_t{card_.multiprocessors} * 4);
      blocks = std::min<int64_t>(blocks, flat.N);
      flat.temporaries = workspace_.As<float>(blocks * row_bytes);
      flat.temporary_width = sharing.padded_width;
    }
    gpu::WithColumns(sharing.columns, [&](auto kColumns) {
      gpu::Launch("ResidualForward", ResidualForwardKernel<T, kColumns()>,
                  {.blocks = static_cast<unsigned>(blocks),
                   .threads = sharing.threads,
                   .shared_bytes = BlockSums::kFloats * int64_t{sizeof(float)}},
                  stream_, flat);
    });
  });
}

}  // namespace twinstream
