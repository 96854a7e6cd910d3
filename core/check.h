// Check(condition, format, ...): ends the process with a message and the place where it was
// written. For programmers' errors and failed machines; what a person or a disk can get wrong is an
// absl::Status.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace twinstream {

// A condition plus the file and line of the call. Implicit on purpose.
struct Condition {
  // NOLINTNEXTLINE(google-explicit-constructor)
  Condition(bool holds_in, const char* file_in = __builtin_FILE(), int line_in = __builtin_LINE())
      : holds(holds_in), file(file_in), line(line_in) {}
  bool holds;
  const char* file;
  int line;
};

// Prints the message through the failure handler; never returns.
[[noreturn]] void Die(absl::string_view message, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE());

template <typename... Args>
void Check(Condition condition, const absl::FormatSpec<Args...>& format, const Args&... args) {
  if (!condition.holds) Die(absl::StrFormat(format, args...), condition.file, condition.line);
}

// Called once, with one paragraph (message, activity, file:line), by the thread that failed; it
// must not return. Without one the paragraph goes to stderr and the process exits with 1.
// launch/runtime installs one that ends the whole MPI job.
using FailureHandler = std::function<void(absl::string_view paragraph)>;
void SetFailureHandler(FailureHandler handler);

// What this thread is doing, for failure messages: `ActivityScope doing("forward of micro-batch 3
// on stage 1")`. Scopes nest; CurrentActivity() joins them, outermost first.
class ActivityScope {
 public:
  explicit ActivityScope(const char* verb,
                         int64_t index = -1);  // verb: a string that outlives the scope
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;
};
std::string CurrentActivity();

// The calling thread's scopes, for another thread that speaks for it while it lives.
struct ActivityStack;
const ActivityStack& ActivityOfThisThread();
// From any thread. While the scopes change it may mix the old and the new ones.
std::string ToString(const ActivityStack& activity);

}  // namespace twinstream
