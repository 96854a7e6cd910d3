#include "launch/host.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/ops.h"

namespace twinstream {
namespace {

constexpr int kMostThreads = 4096;  // as runtime.threads

// The number behind the word `key` in the file, as in "MemAvailable:  1234 kB"; without a key the
// number that the file begins with. -1 when there is none.
int64_t NumberIn(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (!key.empty()) {
      if (word != key) continue;
      file >> word;
    }
    int64_t number = 0;
    return absl::SimpleAtoi(word, &number) ? number : -1;
  }
  return -1;
}

// From the call of `work` until the device has done it.
template <class F>
double SecondsOf(Device& device, F work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  device.Synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every row the same, without zeros: a card that multiplies zeros takes less power and runs faster.
void FillWithWaves(Device& device, Tensor matrix) {
  const int64_t rows = matrix.dim(0);
  std::vector<float> wave(static_cast<size_t>(matrix.dim(1)));
  for (size_t i = 0; i < wave.size(); ++i) wave[i] = std::sin(static_cast<float>(i + 1));
  CopyInRounded(device, matrix.Rows(0, 1), wave);
  for (int64_t filled = 1; filled < rows; filled *= 2) {
    const int64_t more = std::min(filled, rows - filled);
    device.Copy(matrix.Rows(filled, filled + more), matrix.Rows(0, more));
  }
}

}  // namespace

int64_t AvailableMemory() {
  const int64_t kib = NumberIn("/proc/meminfo", "MemAvailable:");
  int64_t bytes = kib < 0 ? std::numeric_limits<int64_t>::max() : kib * 1024;
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max", "");  // "max" where there is none
  const int64_t used = NumberIn("/sys/fs/cgroup/memory.current", "");
  if (limit >= 0 && used >= 0) bytes = std::min(bytes, std::max<int64_t>(limit - used, 0));
  return bytes == std::numeric_limits<int64_t>::max() ? 0 : bytes;
}

int64_t AvailableMemory(const Device& device) {
  return device.host_memory() ? AvailableMemory() : device.FreeBytes();
}

int64_t PeakResidentBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int ThreadsPerRank(const RuntimeSpec& spec, int ranks_on_host) {
  if (spec.threads() > 0) return spec.threads();
  int threads = 0;
  const char* environment = std::getenv("OMP_NUM_THREADS");
  if (environment != nullptr && absl::SimpleAtoi(environment, &threads) && threads > 0)
    return std::min(threads, kMostThreads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_on_host);
}

bool WatchedOnTerminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_RANK") == nullptr) return true;
  const std::string launcher_output = absl::StrCat("/proc/", getppid(), "/fd/1");
  char target[PATH_MAX];
  const ssize_t length = readlink(launcher_output.c_str(), target, sizeof(target));
  const absl::string_view name(target, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  return absl::StartsWith(name, "/dev/pts/") || absl::StartsWith(name, "/dev/tty");
}

bool LostHostsGoUnnoticed(absl::Span<const std::string> hosts) {
  const bool several = std::any_of(hosts.begin(), hosts.end(),
                                   [&](const std::string& host) { return host != hosts[0]; });
  return several && std::getenv("OMPI_COMM_WORLD_RANK") != nullptr &&
         std::getenv("OMPI_MCA_oob_tcp_keepalive_time") == nullptr;
}

namespace {

double ProductFlops(Device& device, int64_t extent, DType dtype) {
  constexpr int kRepeats = 5;
  const TensorSpec spec = {"operand", dtype, {extent, extent}};
  const Storage storage(device, 3 * BytesFor({spec}));
  const std::vector<Tensor> operands = TensorsIn(storage.data(), {{spec, spec, spec}});
  FillWithWaves(device, operands[1]);
  FillWithWaves(device, operands[2]);
  device.Synchronize();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    best = std::min(best, SecondsOf(device, [&] {
                      device.ops().Matmul(operands[0], operands[1], operands[2], {});
                    }));
  }
  return 2 * std::pow(static_cast<double>(extent), 3) / best;
}

}  // namespace

int64_t PeakExtent(Device& device) {
  if (device.host_memory()) return 2048;
  constexpr int64_t kWhole = 8192, kPart = kWhole / 8;
  constexpr double kMostSeconds = 2;
  const double whole = 2 * std::pow(static_cast<double>(kWhole), 3);
  return whole / ProductFlops(device, kPart, DType::kF32) < kMostSeconds ? kWhole : kPart;
}

double MeasurePeakFlops(Device& device, int64_t extent, DType dtype) {
  const double wide = ProductFlops(device, extent, DType::kF32);
  return dtype == DType::kF32 ? wide : std::max(wide, ProductFlops(device, extent, dtype));
}

double MeasureBandwidth(Device& device) {
  constexpr int64_t kElements = int64_t{64} << 20;
  constexpr size_t kRepeats = 7;
  const Storage storage(device, kElements * SizeOf(DType::kF32));
  const Tensor tensor(storage.data(), DType::kF32, Shape{kElements});
  device.ops().Zero(tensor);  // gives it its memory
  std::array<double, kRepeats> seconds;
  for (double& s : seconds) s = SecondsOf(device, [&] { device.ops().Scale(tensor, 1); });
  std::nth_element(seconds.begin(), seconds.begin() + kRepeats / 2, seconds.end());
  return 2 * static_cast<double>(tensor.bytes()) / seconds[kRepeats / 2];
}

}  // namespace twinstream
