// One row on its way back through a residual site: the formulas of core/cuda/residual_backward.cu.
#pragma once

#include <cstdint>

#include "core/cuda/residual_rows.h"
#include "core/ops.h"

namespace twinstream::gpu {

constexpr int kAbsent = -1;

// A site and its tensors (core/ops.h) in the form of one formula: what a site lacks is null, and is
// not read or written, or is a factor of 0. Gradients of a norm z = scale weight . v:
//   dv = scale weight . dz - v scale^3 mean(weight . dz . v),   dweight += scale v . dz
template <class T>
struct BackwardSite {
  int N = 0, C = 0;
  const float* scales = nullptr;  // [4, N]

  // Through the read; all null without one.
  //   du = gradient of h, through N_in
  //   dz = x_du du + x_dx dx,   dx <- x_kept dx + gradient of x_scale x_weight . x from dz
  //                             dy <- dy + gradient of y_scale y_weight . y from du
  const T* dh = nullptr;
  const T* x = nullptr;
  const T* y = nullptr;
  const float* x_weight = nullptr;
  const float* y_weight = nullptr;
  const float* input_weight = nullptr;
  T* h = nullptr;  // perhaps in y's place
  bool normalises_x = false;
  float x_du = 0, x_dx = 0, x_kept = 1;  // x_du: also the part of x in u

  // Through the write.
  //   dp = x_gain dx + p_dy dy,   dx <- base_gain dx + base_dy dy,   dy <- dy_kept dy
  //   do = gradient of o from dp, through N_out
  float base_gain = 1, x_gain = 0, p_dy = 0, base_dy = 0, dy_kept = 1;
  const T* o = nullptr;
  const float* output_weight = nullptr;
  T* d_o = nullptr;

  T* dx = nullptr;
  T* dy = nullptr;
  bool changes_dy = false;

  // Gradients of weights: each that there is has a slot, padded_width floats of every block.
  int x_slot = kAbsent, y_slot = kAbsent, input_slot = kAbsent, output_slot = kAbsent;
  int slots = 0;
  int padded_width = 0;
  float* block_sums = nullptr;   // [blocks, slots, padded_width]
  float* temporaries = nullptr;  // [blocks, padded_width], with kColumns = 0
};

// Where 4 columns of a row of sums lie: those of a warp's threads side by side. fours: how many of
// them a thread has before these.
__device__ inline int PlaceOfFour(int fours) {
  return (fours * static_cast<int>(blockDim.x) + ThisThread()) * 4;
}

// One row as it passes through a block.
template <class T, int kColumns>
class BackwardRow {
 public:
  // weight_sums: of the block, [slots, padded_width].
  __device__ BackwardRow(const BackwardSite<T>& site, int n, BlockSums& sums, float* weight_sums)
      : site_(site),
        n_(n),
        sums_(sums),
        weight_sums_(weight_sums),
        dh_(At(site.dh), site.C),
        x_(At(site.x), site.C),
        y_(At(site.y), site.C),
        dx_(At(site.dx), site.C),
        dy_(At(site.dy), site.C),
        du_(site.temporaries + int64_t{blockIdx.x} * site.padded_width),
        x_scale_(site.normalises_x ? Scale(kScaleX) : 1.0F),
        y_scale_(site.y != nullptr ? Scale(kScaleY) : 0.0F) {}

  __device__ void ThroughInputNorm() {
    input_scale_ = Scale(kScaleInput);
    float sum[1] = {0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> u = StreamSum(at), dh = dh_[at], weight = Weight(site_.input_weight, at);
      Pack<T> dweight;
      for (int j = 0; j < kPack<T>; ++j) {
        const float udh = u.values[j] * dh.values[j];
        dweight.values[j] = input_scale_ * udh;
        sum[0] += weight.values[j] * udh;
      }
      AddToWeight(site_.input_slot, at, dweight);
    });
    sums_.Add(sum);
    u_part_ = Part(input_scale_, sum[0]);
  }

  // du_, and what the norms of x and y need of it.
  __device__ void ThroughSum() {
    float sums[2] = {0, 0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> x_weight = Weight(site_.x_weight, at), y_weight = Weight(site_.y_weight, at);
      const Pack<T> x = x_[at], y = y_[at], dx = dx_[at], du = Du(at);
      Pack<T> dx_weight, dy_weight;
      for (int j = 0; j < kPack<T>; ++j) {
        const float xdz = x.values[j] * Dz(du.values[j], dx.values[j]);
        const float ydu = y.values[j] * du.values[j];
        dx_weight.values[j] = x_scale_ * xdz;
        dy_weight.values[j] = y_scale_ * ydu;
        sums[0] += x_weight.values[j] * xdz;
        sums[1] += y_weight.values[j] * ydu;
      }
      du_.Set(at, du);
      AddToWeight(site_.x_slot, at, dx_weight);
      AddToWeight(site_.y_slot, at, dy_weight);
    });
    if (site_.normalises_x || site_.y != nullptr) sums_.Add(sums);
    x_part_ = site_.normalises_x ? Part(x_scale_, sums[0]) : 0.0F;
    y_part_ = Part(y_scale_, sums[1]);
  }

  // dx, dy and dp: in d_o, or in du_ for the output norm.
  __device__ void ThroughWrite() {
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> x_weight = Weight(site_.x_weight, at), y_weight = Weight(site_.y_weight, at);
      const Pack<T> x = x_[at], y = y_[at];
      Pack<T> dx = dx_[at], dy = dy_[at], du = du_[at];
      if (site_.h != nullptr) StoreColumns<kColumns>(At(site_.h), site_.C, at, Input(at));
      for (int j = 0; j < kPack<T>; ++j) {
        const float dz = Dz(du.values[j], dx.values[j]);
        dx.values[j] = site_.x_kept * dx.values[j] + x_scale_ * x_weight.values[j] * dz -
                       x_part_ * x.values[j];
        dy.values[j] += y_scale_ * y_weight.values[j] * du.values[j] - y_part_ * y.values[j];
      }
      // Rounded, as where a stage begins with the read and they are messages.
      dx = Unpacked(std::type_identity<T>(), Packed(dx));
      dy = Unpacked(std::type_identity<T>(), Packed(dy));
      for (int j = 0; j < kPack<T>; ++j) {
        const float dx_j = dx.values[j], dy_j = dy.values[j];
        dx.values[j] = site_.base_gain * dx_j + site_.base_dy * dy_j;
        dy.values[j] = site_.dy_kept * dy_j;
        du.values[j] = site_.x_gain * dx_j + site_.p_dy * dy_j;
      }
      dx_.Store(At(site_.dx), site_.C, at, dx);
      if (site_.changes_dy) dy_.Store(At(site_.dy), site_.C, at, dy);
      if (site_.output_weight != nullptr) {
        du_.Set(at, du);
      } else if (site_.d_o != nullptr) {
        StoreColumns<kColumns>(At(site_.d_o), site_.C, at, du);
      }
    });
  }

  __device__ void ThroughOutputNorm() {
    const Row<T, kColumns> o_row(At(site_.o), site_.C);
    const float scale = Scale(kScaleOutput);
    float sum[1] = {0};
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> o = o_row[at], dp = du_[at], weight = Weight(site_.output_weight, at);
      Pack<T> dweight;
      for (int j = 0; j < kPack<T>; ++j) {
        const float odp = o.values[j] * dp.values[j];
        dweight.values[j] = scale * odp;
        sum[0] += weight.values[j] * odp;
      }
      AddToWeight(site_.output_slot, at, dweight);
    });
    sums_.Add(sum);
    const float o_part = Part(scale, sum[0]);
    ForEachPackOfRow<T, kColumns>(site_.C, [&](PackPlace at) {
      const Pack<T> o = o_row[at], weight = Weight(site_.output_weight, at);
      Pack<T> d_o = du_[at];
      for (int j = 0; j < kPack<T>; ++j) {
        d_o.values[j] = scale * weight.values[j] * d_o.values[j] - o_part * o.values[j];
      }
      StoreColumns<kColumns>(At(site_.d_o), site_.C, at, d_o);
    });
  }

 private:
  template <class Element>
  __device__ Element* At(Element* matrix) const {
    return matrix == nullptr ? nullptr : matrix + int64_t{n_} * site_.C;
  }
  __device__ float Scale(ResidualScale which) const {
    return site_.scales[int64_t{which} * site_.N + n_];
  }
  __device__ Pack<T> Weight(const float* weight, PackPlace at) const {
    return LoadWeight<T, kColumns>(weight, site_.C, at);
  }
  __device__ float Dz(float du, float dx) const { return site_.x_du * du + site_.x_dx * dx; }
  // What a norm takes off its gradient, times v.
  __device__ float Part(float scale, float sum) const {
    return scale * scale * scale * sum / static_cast<float>(site_.C);
  }

  // u
  __device__ Pack<T> StreamSum(PackPlace at) const {
    const Pack<T> x_weight = Weight(site_.x_weight, at), y_weight = Weight(site_.y_weight, at);
    const Pack<T> x = x_[at], y = y_[at];
    Pack<T> u;
    for (int j = 0; j < kPack<T>; ++j) {
      u.values[j] = site_.x_du * x_scale_ * x_weight.values[j] * x.values[j] +
                    y_scale_ * y_weight.values[j] * y.values[j];
    }
    return u;
  }

  __device__ Pack<T> Du(PackPlace at) const {
    Pack<T> du = dh_[at];
    if (site_.input_weight == nullptr) return du;
    const Pack<T> u = StreamSum(at), weight = Weight(site_.input_weight, at);
    for (int j = 0; j < kPack<T>; ++j) {
      du.values[j] = input_scale_ * weight.values[j] * du.values[j] - u_part_ * u.values[j];
    }
    return du;
  }

  // h
  __device__ Pack<T> Input(PackPlace at) const {
    Pack<T> h = StreamSum(at);
    if (site_.input_weight == nullptr) return h;
    const Pack<T> weight = Weight(site_.input_weight, at);
    for (int j = 0; j < kPack<T>; ++j) h.values[j] *= input_scale_ * weight.values[j];
    return h;
  }

  __device__ void AddToWeight(int slot, PackPlace at, const Pack<T>& dweight) {
    if (slot == kAbsent) return;
    float* const to = weight_sums_ + slot * site_.padded_width + PlaceOfFour(at.i * (kPack<T> / 4));
    const int stride = PlaceOfFour(1) - PlaceOfFour(0);
    Pack<T> sum = LoadFloats<T>(to, stride);
    for (int j = 0; j < kPack<T>; ++j) sum.values[j] += dweight.values[j];
    StoreFloats(to, sum, stride);
  }

  const BackwardSite<T>& site_;
  int n_;
  BlockSums& sums_;
  float* weight_sums_;
  Row<T, kColumns> dh_, x_, y_, dx_, dy_;
  TemporaryRow<T, kColumns> du_;
  float x_scale_, y_scale_, input_scale_ = 1;
  float u_part_ = 0, x_part_ = 0, y_part_ = 0;  // what the norms take off, times u, x and y
};

}  // namespace twinstream::gpu
