#include "parallel/initializer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/string_view.h"
#include "core/check.h"
#include "core/philox.h"

namespace twinstream {
namespace {

// FNV-1a, 64 bits.
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

template <size_t n>
double Polynomial(const std::array<double, n>& coefficients, double x) {
  double value = coefficients[n - 1];
  for (size_t i = n - 1; i-- > 0;) value = value * x + coefficients[i];
  return value;
}

// Inverse of the normal distribution function at 1/2 + q. Wichura, algorithm AS 241 (PPND16),
// Applied Statistics 37 (1988): relative error 1e-16. The centre is free of branches, so a loop
// over it vectorises.
constexpr double kCentre = 0.425;

double QuantileCentre(double q) {  // |q| <= kCentre
  constexpr std::array<double, 8> kNumerator = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                                1.9715909503065514427e3, 1.3731693765509461125e4,
                                                4.5921953931549871457e4, 6.7265770927008700853e4,
                                                3.3430575583588128105e4, 2.5090809287301226727e3};
  constexpr std::array<double, 8> kDenominator = {1.0,
                                                  4.2313330701600911252e1,
                                                  6.8718700749205790830e2,
                                                  5.3941960214247511077e3,
                                                  2.1213794301586595867e4,
                                                  3.9307895800092710610e4,
                                                  2.8729085735721942674e4,
                                                  5.2264952788528545610e3};
  const double r = kCentre * kCentre - q * q;
  return q * Polynomial(kNumerator, r) / Polynomial(kDenominator, r);
}

double QuantileTail(double q) {  // kCentre < |q|, 1/2 - |q| > exp(-25)
  constexpr std::array<double, 8> kNumerator = {
      1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
      3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
      2.27238449892691845833e-2, 7.74545014278341407640e-4};
  constexpr std::array<double, 8> kDenominator = {1.0,
                                                  2.05319162663775882187e0,
                                                  1.67638483018380384940e0,
                                                  6.89767334985100004550e-1,
                                                  1.48103976427480074590e-1,
                                                  1.51986665636164571966e-2,
                                                  5.47593808499534494600e-4,
                                                  1.05075007164441684324e-9};
  const double r = std::sqrt(-std::log(0.5 - std::abs(q))) - 1.6;
  return std::copysign(Polynomial(kNumerator, r) / Polynomial(kDenominator, r), q);
}

// Truncated normals of consecutive elements. Element i is word i % 4 of block i / 4; the seed is
// the key, the block's number and the name's hash the counter.
class NormalStream {
 public:
  NormalStream(float std, uint64_t seed, const std::string& name)
      : std_(std), seed_(seed), name_(Hash(name)) {}

  // Elements [begin, end).
  void Fill(int64_t begin, int64_t end, float* out) const {
    while (begin < end) {
      const int64_t first_block = begin / 4;
      const int64_t blocks = std::min((end + 3) / 4 - first_block, kBlocks);
      std::array<double, 4 * kBlocks> z;
      Draw(first_block, blocks, z.data());
      const int64_t stop = std::min(end, 4 * (first_block + blocks));
      for (; begin < stop; ++begin)
        *out++ = static_cast<float>(std_ * z[static_cast<size_t>(begin - 4 * first_block)]);
    }
  }

 private:
  static constexpr int64_t kBlocks = 64;

  void Draw(int64_t first_block, int64_t blocks, double* z) const {
    // Half of the probability between -3 and 3: half of erf(3 / sqrt(2)).
    constexpr double kHalfMass = 0.49865010196836990;
    constexpr double kTwo32 = 4294967296.0;
    std::array<double, 4 * kBlocks> q;
    for (int64_t i = 0; i < blocks; ++i) {
      const PhiloxBlock bits = Bits(first_block + i);
      for (int64_t w = 0; w < 4; ++w)  // the middle of one of 2^32 equal parts of (-1, 1)
        q[static_cast<size_t>(4 * i + w)] = kHalfMass * ((bits.words[w] + 0.5) * (2 / kTwo32) - 1);
    }
    for (int64_t i = 0; i < 4 * blocks; ++i) z[i] = QuantileCentre(q[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < 4 * blocks; ++i)
      if (const double tail = q[static_cast<size_t>(i)]; std::abs(tail) > kCentre)
        z[i] = QuantileTail(tail);
  }

  PhiloxBlock Bits(int64_t block) const {
    const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
    const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
    const uint64_t number = static_cast<uint64_t>(block);
    return Philox({{low(number), high(number), low(name_), high(name_)}},
                  {{low(seed_), high(seed_)}});
  }

  double std_;
  uint64_t seed_, name_;
};

// Global index of the first element of row `row` of the box, a row being a run along the last
// dimension.
int64_t RowBegin(const Shape& global, const Box& box, int64_t row) {
  int64_t index = 0, stride = global[global.rank() - 1];
  for (int d = global.rank() - 2; d >= 0; --d) {
    index += (box.begin[d] + row % box.extent[d]) * stride;
    row /= box.extent[d];
    stride *= global[d];
  }
  return index + box.begin[global.rank() - 1];
}

}  // namespace

void InitializeBox(float std, uint64_t seed, const std::string& name, const Shape& global,
                   const Box& box, float* out) {
  Check(
      global.rank() >= 1 && box.begin.rank() == global.rank() && box.extent.rank() == global.rank(),
      "%s: a box of %d dimensions in %s", name, box.extent.rank(), global.ToString());
  if (std == 0) {
    std::fill_n(out, box.elements(), 1.0F);
    return;
  }
  if (box.elements() == 0) return;
  const NormalStream normals(std, seed, name);
  const int64_t columns = box.extent[global.rank() - 1], rows = box.elements() / columns;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = RowBegin(global, box, row);
    normals.Fill(begin, begin + columns, out + row * columns);
  }
}

}  // namespace twinstream
