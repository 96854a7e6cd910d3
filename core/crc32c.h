// CRC-32C (Castagnoli), the digest of everything that a checkpoint stores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace twinstream {

// The CRC of what `crc` stands for, followed by `bytes`; begin with 0.
uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes);
// The same by table, for processors without SSE 4.2.
uint32_t ExtendCrc32cByTable(uint32_t crc, absl::Span<const std::byte> bytes);

uint32_t Crc32c(absl::string_view text);

}  // namespace twinstream
