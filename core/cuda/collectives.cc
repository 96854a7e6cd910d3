#include "core/cuda/collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/cuda/check.h"
#include "core/cuda/device.h"
#include "core/cuda/membership.h"
#include "core/cuda/nccl.h"
#include "core/cuda/operation_watch.h"
#include "core/cuda/rounded_sums.h"
#include "core/cuda/stream.h"

namespace twinstream {
namespace {

// Of bf16 values on their way in ReduceScatterAsBFloat16, to and from all members.
constexpr int64_t kScratchBytes = int64_t{32} << 20;

constexpr char kOwner[] = "sums over ranks";

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
  }
  Die("unknown dtype");
}

class CudaCollectives final : public DeviceCollectives {
 public:
  CudaCollectives(const CudaDevice& device, const DeviceGroup& group)
      : group_(group),
        device_(device.stream()),
        stream_(device.card(), CudaStream::Priority::kUrgent),
        watch_({.card = device.card(),
                .group = group.name,
                .timeout_seconds = group.timeout_seconds,
                .failure = [this] { return members_.Failure(); }},
               stream_.get()) {
    Connect();
  }
  ~CudaCollectives() override { stream_.Synchronize(); }

  Number AllReduce(Tensor inout, Reduction reduction) override {
    return Run("all-reduce", [&] {
      Must(nccl_.AllReduce(inout.data(), inout.data(), Count(inout.elements()),
                           TypeOf(inout.dtype()), reduction == Reduction::kSum ? ncclSum : ncclMax,
                           members_.get(), stream()));
    });
  }

  // NCCL knows equal pieces only; others are as many broadcasts at once.
  Number AllGather(Tensor inout, absl::Span<const int64_t> counts) override {
    const ncclDataType_t type = TypeOf(inout.dtype());
    return Run("all-gather", [&] {
      if (AreEqual(counts)) {
        const std::byte* const own = inout.data() + group_.rank * counts[0] * SizeOf(inout.dtype());
        return Must(
            nccl_.AllGather(own, inout.data(), Count(counts[0]), type, members_.get(), stream()));
      }
      ForEachPiece(inout, counts, [&](std::byte* piece, int64_t elements, int r) {
        Must(nccl_.Broadcast(piece, piece, Count(elements), type, r, members_.get(), stream()));
      });
    });
  }

  Number ReduceScatter(Tensor inout, absl::Span<const int64_t> counts) override {
    const ncclDataType_t type = TypeOf(inout.dtype());
    return Run("reduce-scatter", [&] {
      if (AreEqual(counts)) {
        std::byte* const own = inout.data() + group_.rank * counts[0] * SizeOf(inout.dtype());
        return Must(nccl_.ReduceScatter(inout.data(), own, Count(counts[0]), type, ncclSum,
                                        members_.get(), stream()));
      }
      ForEachPiece(inout, counts, [&](std::byte* piece, int64_t elements, int r) {
        Must(nccl_.Reduce(piece, piece, Count(elements), type, ncclSum, r, members_.get(),
                          stream()));
      });
    });
  }

  Number ReduceScatterAsBFloat16(Tensor inout, absl::Span<const int64_t> counts) override {
    return Run("reduce-scatter as bf16", [&] { SumRounded(inout.As<float>(), counts); });
  }

  Number Broadcast(Tensor inout, int root) override {
    return Run("broadcast", [&] {
      Must(nccl_.Broadcast(inout.data(), inout.data(), Count(inout.bytes()), ncclInt8, root,
                           members_.get(), stream()));
    });
  }

  Number Exchange(absl::Span<const DeviceMessage> sent,
                  absl::Span<const DeviceMessage> received) override {
    const char* const what = sent.empty() ? "receive" : received.empty() ? "send" : "all-to-all";
    return Run(what, [&] { ExchangeHere(sent, received); });
  }

  void Await(Number number) override { watch_.MakeWait(device_, number); }

 private:
  static size_t Count(int64_t elements) { return static_cast<size_t>(elements); }
  static bool AreEqual(absl::Span<const int64_t> counts) {
    return std::all_of(counts.begin(), counts.end(), [&](int64_t c) { return c == counts[0]; });
  }

  void Must(ncclResult_t result) const { members_.Must(result); }
  cudaStream_t stream() const { return stream_.get(); }

  // Puts an operation on the stream, after what the device has been given.
  template <typename F>
  Number Run(const char* what, F put) {
    const ActivityScope doing(what);
    given_.Record(device_);
    given_.MakeWait(stream());
    const Number number = watch_.Begin(what);
    put();
    watch_.End();
    return number;
  }

  // What makes the host wait, or the card, does so here, where all members come at the same time,
  // rather than in a step. To join connects them for all of NCCL's collectives (factory.cc sees to
  // that); for messages it connects a pair when one first sends to the other.
  void Connect() {
    Run("connection", [this] { members_.Join(); });
    if (group_.work == GroupWork::kRoundedSums) scratch_.emplace(kScratchBytes, kOwner);
    constexpr int64_t kWord = sizeof(float);
    const CudaMemory memory((1 + group_.size) * kWord, kOwner);
    auto* const words = memory.As<std::byte>();
    AllReduce(Tensor(words, DType::kF32, {1}), Reduction::kMax);
    std::vector<DeviceMessage> sent, received;
    for (int r = 0; r < group_.size; ++r) {
      sent.push_back({.data = words, .bytes = kWord, .peer = r});
      received.push_back({.data = words + (r + 1) * kWord, .bytes = kWord, .peer = r});
    }
    Exchange(sent, received);
    stream_.Synchronize();
  }

  // use(first byte, elements, rank) for every piece that is not empty, all at once.
  template <typename F>
  void ForEachPiece(Tensor inout, absl::Span<const int64_t> counts, F use) {
    std::byte* piece = inout.data();
    Must(nccl_.GroupStart());
    for (int r = 0; r < group_.size; ++r) {
      const int64_t elements = counts[static_cast<size_t>(r)];
      if (elements > 0) use(piece, elements, r);
      piece += elements * SizeOf(inout.dtype());
    }
    Must(nccl_.GroupEnd());
  }

  void ExchangeHere(absl::Span<const DeviceMessage> sent,
                    absl::Span<const DeviceMessage> received) {
    Must(nccl_.GroupStart());
    for (const DeviceMessage& m : sent) {
      Must(nccl_.Send(m.data, Count(m.bytes), ncclInt8, m.peer, members_.get(), stream()));
    }
    for (const DeviceMessage& m : received) {
      Must(nccl_.Recv(m.data, Count(m.bytes), ncclInt8, m.peer, members_.get(), stream()));
    }
    Must(nccl_.GroupEnd());
  }

  static void Append(BFloat16* data, int64_t elements, int peer,
                     std::vector<DeviceMessage>* messages) {
    if (elements == 0) return;
    messages->push_back({.data = reinterpret_cast<std::byte*>(data),
                         .bytes = elements * static_cast<int64_t>(sizeof(BFloat16)),
                         .peer = peer});
  }

  // NCCL would add up bf16 in bf16. So everybody sends everybody the rounded addends of its piece,
  // in rounds of so much of every piece as the scratch memory holds, and sums what arrives.
  void SumRounded(float* values, absl::Span<const int64_t> counts) {
    Check(scratch_.has_value(), "rounded sums over %s: join it with GroupWork::kRoundedSums",
          group_.name);
    const int64_t part =
        kScratchBytes / (int64_t{2} * group_.size * static_cast<int64_t>(sizeof(BFloat16)));
    BFloat16* const sent = scratch_->As<BFloat16>();       // [size][part]
    BFloat16* const received = sent + group_.size * part;  // the same; the own addends are here
    const int64_t longest = *std::max_element(counts.begin(), counts.end());
    for (int64_t begin = 0; begin < longest; begin += part) {
      const auto elements_of = [&](int r) {
        return std::clamp<int64_t>(counts[static_cast<size_t>(r)] - begin, 0, part);
      };
      const int64_t own_elements = elements_of(group_.rank);
      float* own = nullptr;
      float* addends = values + begin;
      sent_.clear();
      received_.clear();
      for (int r = 0; r < group_.size; ++r) {
        const bool is_own = r == group_.rank;
        BFloat16* const rounded = (is_own ? received : sent) + r * part;
        RoundValues(rounded, addends, elements_of(r), stream());
        if (is_own) {
          own = addends;
        } else {
          Append(rounded, elements_of(r), r, &sent_);
          Append(received + r * part, own_elements, r, &received_);
        }
        addends += counts[static_cast<size_t>(r)];
      }
      ExchangeHere(sent_, received_);
      SumRoundedValues(own, received, group_.size, part, own_elements, stream());
    }
  }

  const DeviceGroup group_;
  const cudaStream_t device_;
  CudaStream stream_;
  CudaEvent given_;  // what the device had been given at the latest Run
  const Nccl& nccl_ = LoadNccl();
  Membership members_{group_};
  std::optional<CudaMemory> scratch_;           // of SumRounded, once connected
  std::vector<DeviceMessage> sent_, received_;  // the same
  OperationWatch watch_;
};

class CudaWatch final : public DeviceWatch {
 public:
  CudaWatch(const CudaDevice& device, const std::string& group, double timeout_seconds)
      : watch_({.card = device.card(),
                .group = group,
                .timeout_seconds = timeout_seconds,
                .failure = AnyFailure},
               device.stream()) {}

  void Begin(const char* what) override { watch_.Begin(what); }
  void End() override { watch_.End(); }

 private:
  OperationWatch watch_;
};

class CudaNetwork final : public DeviceNetwork {
 public:
  explicit CudaNetwork(const CudaDevice& device) : device_(device) {
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, device.card()), "cudaGetDeviceProperties");
    card_ = absl::BytesToHexString(
        absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes)));
  }

  absl::string_view card() const override { return card_; }

  DeviceGroupId NewId() const override {
    ncclUniqueId nccl;
    const ncclResult_t result = LoadNccl().GetUniqueId(&nccl);
    Check(result == ncclSuccess, "ncclGetUniqueId: %s", LoadNccl().GetErrorString(result));
    DeviceGroupId id;
    std::memcpy(id.data(), &nccl, sizeof(nccl));
    return id;
  }

  std::unique_ptr<DeviceCollectives> Join(const DeviceGroup& group) override {
    return std::make_unique<CudaCollectives>(device_, group);
  }

  std::unique_ptr<DeviceWatch> Watch(const std::string& group, double timeout_seconds) override {
    return std::make_unique<CudaWatch>(device_, group, timeout_seconds);
  }

  std::unique_ptr<Device> Beside() override { return std::make_unique<CudaDevice>(device_.card()); }

  int64_t Mark() override {
    At(++marks_).Record(device_.stream());
    return marks_;
  }

  void Await(DeviceNetwork& other, int64_t mark) override {
    static_cast<CudaNetwork&>(other).At(mark).MakeWait(device_.stream());
  }

 private:
  CudaEvent& At(int64_t mark) { return events_[static_cast<size_t>(mark) % events_.size()]; }

  const CudaDevice& device_;
  std::string card_;
  std::array<CudaEvent, 256> events_;  // a ring
  int64_t marks_ = 0;
};

}  // namespace

std::unique_ptr<DeviceNetwork> MakeCudaNetwork(const CudaDevice& device) {
  return std::make_unique<CudaNetwork>(device);
}

}  // namespace twinstream
