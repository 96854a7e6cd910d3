// What the rules of job files share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"

namespace twinstream {

// One message per violated rule: field path, offending values, remedy.
using Problems = std::vector<std::string>;

template <typename... Args>
void Add(Problems* problems, const absl::FormatSpec<Args...>& format, const Args&... args) {
  problems->push_back(absl::StrFormat(format, args...));
}

// Numbers below 1 are another rule's to name: these pass over them.
bool Divides(int64_t divisor, int64_t number);
// 0 when a factor is below 1 or when the product overflows.
int64_t Product(std::initializer_list<int64_t> factors);

}  // namespace twinstream
