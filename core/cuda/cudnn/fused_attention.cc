// Attention by cuDNN, through its frontend: headers that load the library themselves. The only file
// that calls it; compiled where CMake is told the frontend's folder.
#include "core/cuda/fused_attention.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <cmath>
#include <exception>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/cuda/attention_part.h"

// What the headers take the library's functions from; theirs to declare, ours to define.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace twinstream {
namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;

constexpr const char* kLibrary = "libcudnn.so.9";

// The tensors of a graph, by the number under which an execution is told their places.
enum TensorId : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };
using Places = std::unordered_map<int64_t, void*>;

// What goes wrong in `work`, which returns the frontend's status or throws; empty: nothing.
template <class Work>
std::string ProblemOf(const Work& work) {
  try {
    fe::error_t status = work();
    if (status.is_good()) return "";
    return absl::StrCat("error ", static_cast<int>(status.get_code()), ": ", status.get_message());
  } catch (const std::exception& exception) {
    return absl::StrCat("error: ", exception.what());
  }
}

// [.., rows, columns] of a part's heads: where they lie in a tensor of all heads.
struct Layout {
  std::vector<int64_t> extents, strides;
};

// The layouts of one part of a shape.
class PartLayouts {
 public:
  PartLayouts(const AttentionShape& shape, PartSize size) : shape_(shape), size_(size) {}

  Layout Queries() const { return HeadMajor(query_heads(), shape_.heads); }
  Layout Keys() const { return HeadMajor(size_.key_heads, shape_.kv_heads); }
  Layout Tokens() const {
    const int64_t T = shape_.sequence, H = shape_.heads, D = shape_.head_dim;
    return {{size_.sequences, query_heads(), T, D}, {T * H * D, D, H * D, 1}};
  }
  // Packed, as cuDNN wants them: of some heads there is one sequence.
  Layout Lse() const {
    const int64_t heads = query_heads(), T = shape_.sequence;
    return {{size_.sequences, heads, T, 1}, {heads * T, T, 1, 1}};
  }

 private:
  int64_t query_heads() const { return size_.key_heads * (shape_.heads / shape_.kv_heads); }
  Layout HeadMajor(int64_t heads, int64_t all_heads) const {
    const int64_t T = shape_.sequence, D = shape_.head_dim;
    return {{size_.sequences, heads, T, D}, {all_heads * T * D, T * D, D, 1}};
  }

  const AttentionShape& shape_;
  PartSize size_;
};

Attributes& Describe(Attributes& tensor, TensorId id, const Layout& layout) {
  return tensor.set_uid(id)
      .set_dim(layout.extents)
      .set_stride(layout.strides)
      .set_data_type(id == kLse ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16);
}

std::shared_ptr<Attributes> Input(fe::graph::Graph& graph, TensorId id, const Layout& layout) {
  Attributes tensor;
  return graph.tensor(Describe(tensor, id, layout));
}

void SetOutput(Attributes& tensor, TensorId id, const Layout& layout) {
  Describe(tensor, id, layout).set_output(true);
}

enum class Pass { kForward, kBackward };

void AddAttention(fe::graph::Graph& graph, Pass pass, const AttentionShape& shape, PartSize size) {
  const PartLayouts layouts(shape, size);
  const float scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  const auto q = Input(graph, kQ, layouts.Queries());
  const auto k = Input(graph, kK, layouts.Keys());
  const auto v = Input(graph, kV, layouts.Keys());
  if (pass == Pass::kForward) {
    const auto [out, lse] = graph.sdpa(q, k, v,
                                       fe::graph::SDPA_attributes()
                                           .set_name("attention forward")
                                           .set_generate_stats(true)
                                           .set_causal_mask(true)
                                           .set_attn_scale(scale));
    SetOutput(*out, kOut, layouts.Tokens());
    SetOutput(*lse, kLse, layouts.Lse());
    return;
  }
  const auto out = Input(graph, kOut, layouts.Tokens());
  const auto dout = Input(graph, kDout, layouts.Tokens());
  const auto lse = Input(graph, kLse, layouts.Lse());
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, lse,
                                                fe::graph::SDPA_backward_attributes()
                                                    .set_name("attention backward")
                                                    .set_causal_mask(true)
                                                    .set_attn_scale(scale)
                                                    .set_deterministic_algorithm(true));
  SetOutput(*dq, kDq, layouts.Queries());
  SetOutput(*dk, kDk, layouts.Keys());
  SetOutput(*dv, kDv, layouts.Keys());
}

struct Plan {
  std::unique_ptr<fe::graph::Graph> graph;  // null: our own kernels do it
  PartSize size;
  Places places;  // of the part that is executed
};

class CudnnAttention final : public FusedAttention {
 public:
  // Takes the handle.
  CudnnAttention(cudnnHandle_t handle, Workspace workspace)
      : handle_(handle), workspace_(workspace) {}
  ~CudnnAttention() override {
    plans_.clear();
    (void)fe::detail::destroy_handle(handle_);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  std::string name() const override {
    const auto version = fe::detail::get_backend_version();  // 9.19.0 is 91900
    return absl::StrFormat("cuDNN %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  }

  bool Forward(const AttentionShape& shape, const AttentionTensors& t) override {
    return Run(Pass::kForward, shape, t, {});
  }

  bool Backward(const AttentionShape& shape, const AttentionTensors& t,
                const AttentionGradients& g) override {
    return Run(Pass::kBackward, shape, t, g);
  }

 private:
  bool Run(Pass pass, const AttentionShape& shape, const AttentionTensors& t,
           const AttentionGradients& g) {
    Plan& plan = PlanOf(pass, shape);
    if (plan.graph == nullptr) return false;
    ForEachPart(shape, plan.size, [&](const PartPlace& place) {
      const auto set = [&plan](TensorId id, Tensor tensor, int64_t element) {
        plan.places[id] = tensor.data() + element * SizeOf(tensor.dtype());
      };
      set(kQ, t.q, place.queries);
      set(kK, t.k, place.keys);
      set(kV, t.v, place.keys);
      set(kOut, t.out, place.tokens);
      set(kLse, t.lse, place.lse);
      if (pass == Pass::kBackward) {
        set(kDout, g.dout, place.tokens);
        set(kDq, g.dq, place.queries);
        set(kDk, g.dk, place.keys);
        set(kDv, g.dv, place.keys);
      }
      const std::string problem =
          ProblemOf([&] { return plan.graph->execute(handle_, plan.places, workspace_.data); });
      if (problem.empty()) return;
      Die(absl::StrFormat("attention %s by %s, %d heads of %d, %d tokens: %s",
                          pass == Pass::kForward ? "forward" : "backward", name(), shape.heads,
                          shape.head_dim, shape.sequence, problem));
    });
    return true;
  }

  // A training job has one shape, or a few.
  Plan& PlanOf(Pass pass, const AttentionShape& shape) {
    const auto [found, is_new] = plans_.try_emplace({pass, shape});
    Plan& plan = found->second;
    if (is_new && !Prepare(pass, shape, plan)) plan.graph = nullptr;
    return plan;
  }

  // For the largest parts whose workspace there is. False: cuDNN cannot, or not as Ops promise, or
  // parts would begin where the log-sum-exps of 4 tokens do not, off the 16 bytes that it expects.
  bool Prepare(Pass pass, const AttentionShape& shape, Plan& plan) {
    plan.size = {.sequences = shape.batch, .key_heads = shape.kv_heads};
    do {
      plan.graph = Built(pass, shape, plan.size);
      int64_t bytes = 0;
      if (plan.graph == nullptr || plan.graph->get_workspace_size(bytes).is_bad()) return false;
      if (bytes >= ScoreBytes(shape, plan.size)) return false;
      if (bytes <= workspace_.bytes) return true;
    } while (shape.sequence % 4 == 0 && MakeSmaller(plan.size));
    return false;
  }

  // Of a part, in bf16. A kernel with so much workspace holds T x T scores, which Ops never do: on
  // Hopper the deterministic backward of cuDNN before 9.25.
  static int64_t ScoreBytes(const AttentionShape& shape, PartSize size) {
    const int64_t heads = size.sequences * size.key_heads * (shape.heads / shape.kv_heads);
    return heads * shape.sequence * shape.sequence * SizeOf(DType::kBF16);
  }

  // By the first choice of cuDNN's heuristics. Null where cuDNN cannot.
  std::unique_ptr<fe::graph::Graph> Built(Pass pass, const AttentionShape& shape, PartSize size) {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const std::string problem = ProblemOf([&] {
      AddAttention(*graph, pass, shape, size);
      return graph->build(handle_, {fe::HeurMode_t::A});
    });
    return problem.empty() ? std::move(graph) : nullptr;
  }

  cudnnHandle_t handle_;
  Workspace workspace_;
  std::map<std::pair<Pass, AttentionShape>, Plan> plans_;
};

}  // namespace

std::unique_ptr<FusedAttention> MakeFusedAttention(gpu::Stream stream, Workspace workspace) {
  static const void* const library = fe::cudnn_dlhandle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  cudnnHandle_t handle = nullptr;
  const auto start = [&] {
    int card = 0;  // the frontend loads CUDA's runtime itself
    const bool started = fe::detail::cuda_get_device(&card) == cudaSuccess &&
                         fe::detail::create_handle(&handle) == CUDNN_STATUS_SUCCESS &&
                         fe::detail::set_stream(handle, stream) == CUDNN_STATUS_SUCCESS;
    return started ? fe::error_t() : fe::error_t(fe::error_code_t::HANDLE_ERROR, "");
  };
  const bool started = ProblemOf(start).empty();
  if (started) return std::make_unique<CudnnAttention>(handle, workspace);
  if (handle != nullptr) (void)fe::detail::destroy_handle(handle);
  return nullptr;
}

}  // namespace twinstream
