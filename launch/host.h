// What this host offers: memory, cores, arithmetic.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "core/device.h"
#include "proto/job.pb.h"

namespace twinstream {

// Bytes that processes can still take without swapping: the kernel's estimate, or less where a
// control group says so. 0 when unknown.
int64_t AvailableMemory();

// Bytes that this device can still give: the card's, or the host's.
int64_t AvailableMemory(const Device& device);

// Largest resident size that this process has had, in bytes.
int64_t PeakResidentBytes();

// Compute threads of one rank: runtime.threads, else OMP_NUM_THREADS, else this host's cores over
// its ranks; at least 1.
int ThreadsPerRank(const RuntimeSpec& spec, int ranks_on_host);

// Whether a person watches this process's standard output on a terminal. mpirun gives its ranks a
// pseudo-terminal whatever its own output is: then its own counts.
bool WatchedOnTerminal();

// Whether these ranks' hosts are several and mpirun started them without asking its daemons for
// signs of life: it then takes minutes to notice that one of them cannot be reached any more.
bool LostHostsGoUnnoticed(absl::Span<const std::string> hosts);

// The extent of square matrices whose product gives the device its full speed; less on a card so
// slow that such a product would take seconds.
int64_t PeakExtent(Device& device);

// FLOP/s of a product of extent x extent matrices on this device, operands and result of this type:
// the best of a few. bf16: the better of its own and of float32's, in which such products can
// always be taken.
double MeasurePeakFlops(Device& device, int64_t extent, DType dtype);

// Bytes/s, reads and writes both counted, of an operation in place on more memory than caches hold:
// the median of several. Takes 256 MiB meanwhile.
double MeasureBandwidth(Device& device);

}  // namespace twinstream
