#include "core/cuda/matrix_products.h"

#include "core/device.h"

namespace twinstream {
namespace {

class CpuProducts final : public MatrixProducts {
 public:
  explicit CpuProducts(gpu::Stream stream) : stream_(stream) {}

  void Multiply(Tensor out, Tensor a, Tensor b, MatmulOptions options) override {
    gpu::Issue(stream_, [=, this] { cpu_->ops().Matmul(out, a, b, options); });
  }

 private:
  const gpu::Stream stream_;
  std::unique_ptr<Device> cpu_ = MakeDevice("cpu").value();
};

}  // namespace

std::unique_ptr<MatrixProducts> MakeMatrixProducts(gpu::Stream stream) {
  return std::make_unique<CpuProducts>(stream);
}

}  // namespace twinstream
