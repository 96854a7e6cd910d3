#include "launch/exit_code.h"

namespace twinstream {

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return 0;
  if (absl::IsCancelled(status)) return 3;
  const bool asked_wrongly = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                             absl::IsFailedPrecondition(status) || absl::IsOutOfRange(status) ||
                             absl::IsUnimplemented(status);
  return asked_wrongly ? 2 : 1;
}

}  // namespace twinstream
