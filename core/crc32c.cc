#include "core/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace twinstream {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  constexpr uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kReversedPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc,
                                                               absl::Span<const std::byte> bytes) {
  uint64_t state = ~crc;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  uint32_t tail = static_cast<uint32_t>(state);
  for (; i < bytes.size(); ++i) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(bytes[i]));
  return ~tail;
}

}  // namespace

uint32_t ExtendCrc32cByTable(uint32_t crc, absl::Span<const std::byte> bytes) {
  static constexpr std::array<uint32_t, 256> kTable = MakeTable();
  uint32_t state = ~crc;
  for (std::byte byte : bytes) {
    state = (state >> 8) ^ kTable[(state ^ static_cast<uint32_t>(byte)) & 0xFF];
  }
  return ~state;
}

uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes) {
  return __builtin_cpu_supports("sse4.2") ? ExtendByInstruction(crc, bytes)
                                          : ExtendCrc32cByTable(crc, bytes);
}

uint32_t Crc32c(absl::string_view text) {
  return ExtendCrc32c(0, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

}  // namespace twinstream
