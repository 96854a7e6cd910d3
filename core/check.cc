#include "core/check.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace twinstream {

// Fixed depth: entering a scope never allocates. Written by one thread, read by any.
struct ActivityStack {
  struct Activity {
    std::atomic<const char*> verb{""};
    std::atomic<int64_t> index{-1};
  };
  std::array<Activity, 16> entries;
  std::atomic<size_t> depth{0};
};

namespace {

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
  const size_t depth = stack.depth;
  if (depth < stack.entries.size()) {
    stack.entries[depth].verb = verb;
    stack.entries[depth].index = index;
  }
  stack.depth = depth + 1;
}

ActivityScope::~ActivityScope() { --ThisThread().depth; }

const ActivityStack& ActivityOfThisThread() { return ThisThread(); }

std::string ToString(const ActivityStack& activity) {
  std::string text;
  for (size_t i = 0; i < std::min(activity.depth.load(), activity.entries.size()); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", activity.entries[i].verb.load());
    const int64_t index = activity.entries[i].index;
    if (index >= 0) absl::StrAppend(&text, " ", index);
  }
  return text;
}

std::string CurrentActivity() { return ToString(ThisThread()); }

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
