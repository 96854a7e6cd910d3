#include "tests/testing/temporary_directory.h"

#include <cstdlib>
#include <filesystem>

#include "core/check.h"

namespace twinstream::testing {

TemporaryDirectory::TemporaryDirectory()
    : path_((std::filesystem::temp_directory_path() / "twinstream_XXXXXX").string()) {
  Check(mkdtemp(path_.data()) != nullptr, "cannot make a directory like %s", path_);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace twinstream::testing
