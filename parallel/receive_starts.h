// When a rank's receives can start: well before their instruction, so that messages arrive while
// the rank computes. Where they cost nothing until then: not over a network of devices.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/schedule.h"

namespace twinstream {

// Instruction `receive` of a program, started just before instruction `before`.
struct ReceiveStart {
  size_t before = 0, receive = 0;
  friend bool operator==(const ReceiveStart&, const ReceiveStart&) = default;
};

// Every receive of one rank's checked program at the first place where its memory is free: behind
// the last instruction of the micro-batch that had the slot before. But receives of one kind, which
// all come from one rank, start in the order of their instructions, so that each still gets its own
// message. Fills *starts in the order in which to start. Allocates nothing the second time.
void FindReceiveStarts(const Program& program, std::vector<ReceiveStart>* starts);

}  // namespace twinstream
