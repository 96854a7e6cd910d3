#include "tests/testing/rank_devices.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "parallel/host_communicator.h"
#include "parallel/staged_communicator.h"
#include "tests/testing/run_ranks.h"

namespace twinstream::testing {
namespace {

// Operations are done when they return; a message when it is awaited. Does no work but what the
// group was joined for.
class ThreadCollectives final : public DeviceCollectives {
 public:
  ThreadCollectives(ThreadHub& hub, int rank, GroupWork work, Device& device)
      : work_(work),
        transport_(hub, rank),
        group_(
            std::make_unique<HostCommunicator>(transport_, GridGroup::kWorld, AllRanks(hub.size())),
            device) {
    transport_.SetWaitPolicy({.timeout_seconds = 60});
  }

  Number AllReduce(Tensor inout, Reduction reduction) override {
    group_.AllReduce(inout, reduction);
    return Started(GroupWork::kCollectives);
  }
  Number AllGather(Tensor inout, absl::Span<const int64_t> counts) override {
    group_.AllGather(inout, counts);
    return Started(GroupWork::kCollectives);
  }
  Number ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) override {
    group_.ReduceScatter(inout, counts);
    return Started(GroupWork::kCollectives);
  }
  Number ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) override {
    group_.ReduceScatterAsBFloat16(inout, counts);
    return Started(GroupWork::kRoundedSums);
  }
  Number Broadcast(Tensor inout, int root) override {
    group_.Broadcast(inout, root);
    return Started(GroupWork::kCollectives);
  }
  Number Exchange(absl::Span<const DeviceMessage> sent,
                  absl::Span<const DeviceMessage> received) override {
    std::vector<Ticket>& tickets = tickets_[Started(GroupWork::kMessages)];
    for (const DeviceMessage& message : received) {
      tickets.push_back(group_.StartReceive(View(message), message.peer, Channel::kData));
    }
    for (const DeviceMessage& message : sent) {
      tickets.push_back(group_.Send(View(message), message.peer, Channel::kData));
    }
    return started_;
  }
  void Await(Number number) override {
    Check(number <= started_, "operation %d of %d is awaited", number, started_);
    for (Ticket ticket : tickets_[number]) group_.Wait(ticket);
    tickets_.erase(number);
  }

 private:
  static Tensor View(const DeviceMessage& message) {
    return Tensor(message.data, DType::kBF16, {message.bytes / SizeOf(DType::kBF16)});
  }

  Number Started(GroupWork work) {
    Check(work <= work_, "a group is asked for more than it was joined for");
    return ++started_;
  }

  const GroupWork work_;
  ThreadTransport transport_;
  StagedCommunicator group_;
  Number started_ = 0;
  std::map<Number, std::vector<Ticket>> tickets_;  // of exchanges
};

// The host waits in every operation, and dies there.
class NothingToWatch final : public DeviceWatch {
 public:
  void Begin(const char* /*what*/) override {}
  void End() override {}
};

class RemoteDevice final : public Device, private DeviceNetwork {
 public:
  // owned: null for a device beside another one, which owns `device`.
  RemoteDevice(std::unique_ptr<Device> owned, Device& device, ThreadNetworkHub* hub,
               std::string card, int64_t free_bytes)
      : owned_(std::move(owned)),
        device_(device),
        hub_(hub),
        card_(std::move(card)),
        free_bytes_(free_bytes) {}

  absl::string_view name() const override { return device_.name(); }
  std::byte* Allocate(int64_t bytes) override { return device_.Allocate(bytes); }
  void Free(std::byte* data, int64_t bytes) override { device_.Free(data, bytes); }
  int64_t FreeBytes() const override { return free_bytes_; }
  std::byte* AllocateHost(int64_t bytes) override { return device_.AllocateHost(bytes); }
  void FreeHost(std::byte* data, int64_t bytes) override { device_.FreeHost(data, bytes); }
  void Copy(Tensor to, Tensor from) override { device_.Copy(to, from); }
  void CopyIn(Tensor to, const void* host) override { device_.CopyIn(to, host); }
  void CopyOut(void* host, Tensor from) override { device_.CopyOut(host, from); }
  void Synchronize() override { device_.Synchronize(); }
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> issue) override {
    return device_.Record(issue);
  }
  const Ops& ops() const override { return device_.ops(); }
  bool host_memory() const override { return false; }
  DeviceNetwork* network() override { return hub_ == nullptr ? nullptr : this; }

 private:
  absl::string_view card() const override { return card_; }
  DeviceGroupId NewId() const override { return hub_->NewId(); }
  std::unique_ptr<DeviceCollectives> Join(const DeviceGroup& group) override {
    return std::make_unique<ThreadCollectives>(hub_->Meet(group), group.rank, group.work, *this);
  }
  std::unique_ptr<DeviceWatch> Watch(const std::string& /*group*/,
                                     double /*timeout_seconds*/) override {
    return std::make_unique<NothingToWatch>();
  }
  std::unique_ptr<Device> Beside() override {
    return std::make_unique<RemoteDevice>(nullptr, device_, hub_, card_, free_bytes_);
  }
  int64_t Mark() override { return ++marks_; }
  void Await(DeviceNetwork& other, int64_t mark) override {
    Check(mark <= static_cast<RemoteDevice&>(other).marks_, "mark %d is still to come", mark);
  }

  std::unique_ptr<Device> owned_;
  Device& device_;
  ThreadNetworkHub* const hub_;
  const std::string card_;
  const int64_t free_bytes_;
  int64_t marks_ = 0;
};

class UntouchableDevice final : public Device {
 public:
  absl::string_view name() const override { return "untouchable"; }

  std::byte* Allocate(int64_t bytes) override {
    void* const begin = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    Check(begin != MAP_FAILED, "no addresses for %d bytes", bytes);
    auto* const data = static_cast<std::byte*>(begin);
    pieces_[data].resize(static_cast<size_t>(bytes));
    return data;
  }
  void Free(std::byte* data, int64_t bytes) override {
    munmap(data, static_cast<size_t>(bytes));
    pieces_.erase(data);
  }
  int64_t FreeBytes() const override { return 0; }
  std::byte* AllocateHost(int64_t bytes) override {
    return new std::byte[static_cast<size_t>(bytes)]();
  }
  void FreeHost(std::byte* data, int64_t /*bytes*/) override { delete[] data; }
  void Copy(Tensor to, Tensor from) override { CopyIn(to, Find(from)); }
  void CopyIn(Tensor to, const void* host) override {
    if (to.bytes() > 0) std::memmove(Find(to), host, static_cast<size_t>(to.bytes()));
  }
  void CopyOut(void* host, Tensor from) override {
    if (from.bytes() > 0) std::memcpy(host, Find(from), static_cast<size_t>(from.bytes()));
  }
  void Synchronize() override {}
  std::unique_ptr<RecordedWork> Record(absl::FunctionRef<void()> /*issue*/) override {
    return nullptr;
  }
  const Ops& ops() const override { Die("an untouchable device computes nothing"); }
  bool host_memory() const override { return false; }
  DeviceNetwork* network() override { return nullptr; }

 private:
  std::byte* Find(Tensor tensor) {
    if (tensor.bytes() == 0) return nullptr;
    const auto after = pieces_.upper_bound(tensor.data());
    Check(after != pieces_.begin(), "a tensor that is not of this device");
    auto& [begin, bytes] = *std::prev(after);
    const int64_t offset = tensor.data() - begin;
    Check(offset + tensor.bytes() <= static_cast<int64_t>(bytes.size()),
          "a tensor that is not of this device");
    return bytes.data() + offset;
  }

  std::map<std::byte*, std::vector<std::byte>> pieces_;
};

}  // namespace

DeviceGroupId ThreadNetworkHub::NewId() {
  const std::lock_guard lock(mutex_);
  DeviceGroupId id = {};
  ++ids_;
  std::memcpy(id.data(), &ids_, sizeof(ids_));
  return id;
}

ThreadHub& ThreadNetworkHub::Meet(const DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  Meeting& meeting = meetings_[group.id];
  if (meeting.hub == nullptr) meeting = {group.work, std::make_unique<ThreadHub>(group.size)};
  Check(meeting.hub->size() == group.size, "a group of %d and %d", meeting.hub->size(), group.size);
  Check(meeting.work == group.work, "members of %s join it for different work", group.name);
  return *meeting.hub;
}

int ThreadNetworkHub::groups(GroupWork work) const {
  return static_cast<int>(
      std::count_if(meetings_.begin(), meetings_.end(),
                    [work](const auto& meeting) { return meeting.second.work == work; }));
}

DeviceMaker CpuDevices() {
  return [](int /*rank*/) { return MakeDevice("cpu", {}).value(); };
}

std::unique_ptr<Device> MakeRemoteDevice(std::unique_ptr<Device> device, ThreadNetworkHub* hub,
                                         const std::string& card, int64_t free_bytes) {
  Device& to_wrap = *device;
  return std::make_unique<RemoteDevice>(std::move(device), to_wrap, hub, card, free_bytes);
}

DeviceMaker RemoteCpuDevices(ThreadNetworkHub* hub) {
  return [hub](int rank) {
    return MakeRemoteDevice(MakeDevice("cpu", {}).value(), hub, absl::StrCat("card ", rank));
  };
}

std::unique_ptr<Device> MakeUntouchableDevice() { return std::make_unique<UntouchableDevice>(); }

}  // namespace twinstream::testing
