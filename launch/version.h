// What this program calls itself: --version, and the writer named in checkpoints.
#pragma once

namespace twinstream {

inline constexpr char kProgramVersion[] = "twinstream 0.1.0";

}  // namespace twinstream
