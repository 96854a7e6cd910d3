#include "core/cuda/matrix_products.h"

#include "core/device.h"

namespace twinstream {
namespace {

class CpuProducts final : public MatrixProducts {
 public:
  void Multiply(Tensor out, Tensor a, Tensor b, MatmulOptions options) override {
    cpu_->ops().Matmul(out, a, b, options);
  }

 private:
  std::unique_ptr<Device> cpu_ = MakeDevice("cpu").value();
};

}  // namespace

std::unique_ptr<MatrixProducts> MakeMatrixProducts(gpu::Stream /*stream*/) {
  return std::make_unique<CpuProducts>();
}

}  // namespace twinstream
