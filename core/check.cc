#include "core/check.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace twinstream {
namespace {

struct Activity {
  const char* verb;
  int64_t index;
};

// Fixed depth: entering a scope never allocates.
struct ActivityStack {
  std::array<Activity, 16> entries;
  size_t depth = 0;
};

ActivityStack& ThisThread() {
  thread_local ActivityStack stack;
  return stack;
}

FailureHandler& Handler() {
  static FailureHandler& handler =
      *new FailureHandler;  // never destroyed: used until the last instruction
  return handler;
}

}  // namespace

ActivityScope::ActivityScope(const char* verb, int64_t index) {
  ActivityStack& stack = ThisThread();
  if (stack.depth < stack.entries.size()) stack.entries[stack.depth] = {verb, index};
  ++stack.depth;
}

ActivityScope::~ActivityScope() { --ThisThread().depth; }

std::string CurrentActivity() {
  const ActivityStack& stack = ThisThread();
  std::string text;
  for (size_t i = 0; i < std::min(stack.depth, stack.entries.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", stack.entries[i].verb);
    if (stack.entries[i].index >= 0) absl::StrAppend(&text, " ", stack.entries[i].index);
  }
  return text;
}

void SetFailureHandler(FailureHandler handler) { Handler() = std::move(handler); }

void Die(absl::string_view message, const char* file, int line) {
  const std::string activity = CurrentActivity();
  const std::string paragraph =
      absl::StrCat(message, activity.empty() ? "" : absl::StrCat(" (during ", activity, ")"), " [",
                   file, ":", line, "]");
  if (Handler()) Handler()(paragraph);
  std::fprintf(stderr, "%s\n", paragraph.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

}  // namespace twinstream
