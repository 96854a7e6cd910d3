// The only file that names the backends.
#include <dlfcn.h>
#include <elf.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/cpu/device.h"
#include "core/cuda/factory.h"
#include "core/device.h"
#include "core/file.h"

namespace twinstream {
namespace {

namespace fs = std::filesystem;

// With the kernels of the instruction set that this machine is best at.
std::unique_ptr<Device> MakeCpuDevice(int threads) {
  return HasAvx512Bf16() ? avx512::MakeCpuDevice(threads) : avx2::MakeCpuDevice(threads);
}

// The CUDA backend's module: beside the program; one folder up, for the tests of a build; or in lib
// beside an installed program's bin.
absl::StatusOr<std::string> FindModule() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path folders[] = {program, program.parent_path(), program.parent_path() / "lib"};
  std::vector<std::string> looked_in;
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / kCudaModule, error)) return (folder / kCudaModule).string();
    looked_in.push_back(folder.string());
  }
  return CudaNeeds(absl::StrCat("the module ", kCudaModule, ", which is not in ",
                                absl::StrJoin(looked_in, ", ")),
                   "build it with cmake -DTWINSTREAM_CUDA=ON");
}

// problem: the loader's, as "libcublasLt.so.13: cannot open shared object file: No such file ...".
absl::Status CannotLoad(const std::string& module, absl::string_view problem) {
  const std::pair<absl::string_view, absl::string_view> file_and_problem =
      absl::StrSplit(problem, absl::MaxSplits(": ", 1));
  const auto [file, what] = file_and_problem;
  if (file != module && absl::StrContains(what, "No such file")) {
    return CudaNeeds(absl::StrCat(file, ", which the loader does not find"),
                     "install CUDA's libraries and name their folders in LD_LIBRARY_PATH");
  }
  return CudaNeeds(
      absl::StrCat("a module that fits this program, and the loader says of it \"", problem, "\""),
      "build both together");
}

// The structure at this offset; none where the module ends before.
template <class T>
std::optional<T> ReadAt(absl::Span<const std::byte> module, size_t offset) {
  T value;
  if (offset > module.size() || module.size() - offset < sizeof(value)) return std::nullopt;
  std::memcpy(&value, module.data() + offset, sizeof(value));
  return value;
}

// Whether a part that the loader maps is missing, as after a copy that was interrupted: the loader
// would die of it. What is no module it refuses itself.
bool IsCutOff(absl::Span<const std::byte> module) {
  const auto header = ReadAt<Elf64_Ehdr>(module, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return false;
  for (size_t i = 0; i < header->e_phnum; ++i) {
    const auto part = ReadAt<Elf64_Phdr>(module, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!part || part->p_offset + part->p_filesz > module.size()) return true;
  }
  return false;
}

// Loaded once, whatever the number of calls, and never unloaded.
absl::StatusOr<const CudaBackend*> LoadCudaBackend() {
  const absl::StatusOr<std::string> module = FindModule();
  if (!module.ok()) return module.status();
  const absl::StatusOr<MappedFile> file = MappedFile::Open(*module);
  if (file.ok() && IsCutOff(file->bytes())) {
    return CudaNeeds(absl::StrCat("a whole module, and ", *module, " is cut off"), "copy it again");
  }
  void* const library = dlopen(module->c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return CannotLoad(*module, dlerror());
  void* const entry = dlsym(library, kCudaEntry);
  if (entry == nullptr) return CannotLoad(*module, dlerror());
  return reinterpret_cast<decltype(&TwinstreamCudaBackend)>(entry)();
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int local_rank) {
  const absl::StatusOr<const CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok()) return backend.status();
  const absl::StatusOr<int> card = (*backend)->CardOf(local_rank);
  if (!card.ok()) return card.status();
  return (*backend)->MakeDevice(*card);
}

// A host without NVIDIA's driver has no card: its jobs need not load CUDA's libraries to learn it.
bool HasCudaDriver() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr; }

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(absl::string_view name,
                                                   const DeviceOptions& options) {
  if (name == "cpu") return MakeCpuDevice(options.threads);
  if (name == "cuda") return MakeCudaDevice(options.local_rank);
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device ", name, ", only cpu and cuda"));
}

absl::Status UsableCard(int local_rank) {
  if (!HasCudaDriver()) return absl::NotFoundError("this host has no NVIDIA driver");
  const absl::StatusOr<const CudaBackend*> backend = LoadCudaBackend();
  if (!backend.ok()) return backend.status();
  return (*backend)->CardOf(local_rank).status();
}

}  // namespace twinstream
