// The only file that names the backends.
#include "absl/strings/str_cat.h"
#include "core/cpu/device.h"
#include "core/device.h"

namespace twinstream {

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(absl::string_view name, int threads) {
  if (name == "cpu") return MakeCpuDevice(threads);
  return absl::UnimplementedError(
      absl::StrCat("device ", name, " is not built into this program; cpu is"));
}

}  // namespace twinstream
