// TfEventsWriter: scalars in TensorBoard's event files. Each record is an Event message framed with
// its length and two masked CRC-32Cs; the few fields needed are encoded here, so there is no
// dependency on TensorFlow's messages.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file.h"

namespace twinstream {

struct TaggedScalar {
  absl::string_view tag;
  double value = 0;  // stored as float32; not-a-number and infinities are allowed
};

class TfEventsWriter {
 public:
  // A new file events.out.tfevents.<time>.<host>.<process>.<n> in `directory`, which is made if
  // missing. TensorBoard then forgets what other files there say about `first_step` and later ones.
  static absl::StatusOr<TfEventsWriter> Create(const std::string& directory, int64_t first_step);

  // One event, on the disk's way when this returns.
  absl::Status Write(int64_t step, absl::Span<const TaggedScalar> scalars);

  const std::string& path() const { return file_.path(); }

 private:
  explicit TfEventsWriter(OutputFile file) : file_(std::move(file)) {}
  absl::Status WriteRecord(absl::string_view event);

  OutputFile file_;
};

}  // namespace twinstream
