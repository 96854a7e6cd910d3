#include "core/cuda/device.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/cuda/check.h"
#include "core/cuda/collectives.h"
#include "core/op_checks.h"

namespace twinstream {
namespace {

// Products of warpgroups are in the code for 9.0 alone: no later card has them.
Card PropertiesOf(int card) {
  return {.multiprocessors = AttributeOf(card, cudaDevAttrMultiProcessorCount),
          .warpgroup_products = AttributeOf(card, cudaDevAttrComputeCapabilityMajor) == 9 &&
                                AttributeOf(card, cudaDevAttrComputeCapabilityMinor) == 0};
}

std::string NameOf(const FusedAttention* fused) {
  return fused == nullptr ? "cuda" : absl::StrCat("cuda, attention by ", fused->name());
}

void CopyBytes(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
}

// A captured graph, which runs on the stream that it was captured from.
class CudaGraph final : public RecordedWork {
 public:
  CudaGraph(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
  ~CudaGraph() override { Check(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy"); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void Run() override { Check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

 private:
  const cudaGraphExec_t graph_;
  const cudaStream_t stream_;
};

bool Succeeded(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();  // or the next launch would be blamed for it
  return error == cudaSuccess;
}

}  // namespace

int AttributeOf(int card, cudaDeviceAttr attribute) {
  int value = 0;
  Check(cudaDeviceGetAttribute(&value, attribute, card), "cudaDeviceGetAttribute");
  return value;
}

CudaDevice::CudaDevice(int card)
    : card_(card),
      stream_(card, CudaStream::Priority::kUsual),
      workspace_(*this, kWorkspaceBytes),
      ops_(stream(), PropertiesOf(card), workspace(), MakeFusedAttention(stream(), workspace())),
      name_(NameOf(ops_.fused())),
      network_(MakeCudaNetwork(*this)) {}

void CudaDevice::CheckNotRecording(const char* what) const {
  Check(!recording_, "%s while the device records its work", what);
}

std::byte* CudaDevice::Allocate(int64_t bytes) {
  CheckNotRecording("memory is allocated");
  Check(cudaSetDevice(card_), "cudaSetDevice");
  auto* const data = static_cast<std::byte*>(AllocateOnCard(
      bytes, /*purpose=*/"",
      "use more ranks, parallel.recompute, a smaller train.microbatch or a smaller model"));
  gpu::Clear(data, bytes, stream());
  return data;
}

void CudaDevice::Free(std::byte* data, int64_t /*bytes*/) {
  CheckNotRecording("memory is freed");
  Check(cudaSetDevice(card_), "cudaSetDevice");
  Synchronize();  // the stream's work may still use it
  Check(cudaFree(data), "cudaFree");
}

int64_t CudaDevice::FreeBytes() const {
  size_t free = 0, total = 0;
  Check(cudaSetDevice(card_), "cudaSetDevice");
  Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<int64_t>(free);
}

std::byte* CudaDevice::AllocateHost(int64_t bytes) {
  CheckNotRecording("memory of the host is allocated");
  Check(cudaSetDevice(card_), "cudaSetDevice");
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    Die(
        absl::StrFormat("the host of card %d has no %d bytes of memory left that it could "
                        "page-lock: use fewer ranks on it, a smaller train.microbatch or a host "
                        "with more free memory",
                        card_, bytes));
  }
  Check(error, "cudaMallocHost");
  std::memset(data, 0, static_cast<size_t>(bytes));
  return static_cast<std::byte*>(data);
}

void CudaDevice::FreeHost(std::byte* data, int64_t /*bytes*/) {
  CheckNotRecording("memory of the host is freed");
  Check(cudaSetDevice(card_), "cudaSetDevice");
  Check(cudaFreeHost(data), "cudaFreeHost");
}

void CudaDevice::Copy(Tensor to, Tensor from) {
  CheckCopy(to, from);
  CopyBytes(to.data(), from.data(), from.bytes(), stream());
}

void CudaDevice::CopyIn(Tensor to, const void* host) {
  CheckNotRecording("the host writes");
  CopyBytes(to.data(), host, to.bytes(), stream());
  Synchronize();
}

void CudaDevice::CopyOut(void* host, Tensor from) {
  CheckNotRecording("the host reads");
  CopyBytes(host, from.data(), from.bytes(), stream());
  Synchronize();
}

void CudaDevice::Synchronize() {
  CheckNotRecording("the host waits");
  stream_.Synchronize();
}

// Other threads, which may be other ranks', are free to do meanwhile what a capture forbids.
std::unique_ptr<RecordedWork> CudaDevice::Record(absl::FunctionRef<void()> issue) {
  CheckNotRecording("another recording begins");
  if (!Succeeded(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal))) {
    return nullptr;
  }
  recording_ = true;
  issue();
  recording_ = false;
  cudaGraph_t captured = nullptr;
  if (!Succeeded(cudaStreamEndCapture(stream(), &captured))) return nullptr;
  cudaGraphExec_t graph = nullptr;
  const bool ready = Succeeded(cudaGraphInstantiate(&graph, captured, /*flags=*/0));
  Check(cudaGraphDestroy(captured), "cudaGraphDestroy");
  if (!ready) return nullptr;
  return std::make_unique<CudaGraph>(graph, stream());
}

}  // namespace twinstream
