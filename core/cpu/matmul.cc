// Matrix products on the CPU: by oneDNN, which no other file knows.
#include <omp.h>

#include <algorithm>
#include <array>
#include <compare>
#include <dnnl.hpp>
#include <map>

#include "core/cpu/ops.h"
#include "core/cpu/parallel.h"
#include "core/cpu/vector_math.h"
#include "core/grouped_products.h"
#include "core/op_checks.h"

namespace twinstream::TWINSTREAM_CPU_ISA {
namespace {

// How a matrix of a product lies in memory.
struct MatrixLayout {
  DType dtype = DType::kF32;
  int64_t stride = 0;  // elements from one stored row to the next

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the generated 0 for a pointer
  friend auto operator<=>(const MatrixLayout&, const MatrixLayout&) = default;
};

// What a prepared product depends on.
struct ProductKey {
  int64_t M = 0, N = 0, K = 0;
  MatrixLayout a, b, out;
  MatmulOptions options;
  int threads = 1;  // a prepared product has its split over threads built in

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the generated 0 for a pointer
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

// A prepared product, and the memory objects that carry its operands.
struct Product {
  dnnl::memory a, b, out;
  dnnl::matmul primitive;
};

dnnl::memory::data_type TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

enum class Stored { kByRows, kByColumns };

dnnl::memory::desc Describe(int64_t rows, int64_t columns, MatrixLayout layout, Stored stored) {
  const dnnl::memory::dims strides = stored == Stored::kByColumns
                                         ? dnnl::memory::dims{1, layout.stride}
                                         : dnnl::memory::dims{layout.stride, 1};
  return dnnl::memory::desc({rows, columns}, TypeOf(layout.dtype), strides);
}

// Another kernel family of oneDNN, for float32, which takes any shape as it comes: preparing a
// product costs as much as computing a small one, and shapes of which there is no end would fill
// the cache.
void VaryingProduct(const ProductKey& key, void* out, const void* a, const void* b) {
  dnnl::error::wrap_c_api(
      dnnl_sgemm(key.options.transpose_a ? 'T' : 'N', key.options.transpose_b ? 'T' : 'N', key.M,
                 key.N, key.K, 1, static_cast<const float*>(a), key.a.stride,
                 static_cast<const float*>(b), key.b.stride, key.options.accumulate ? 1 : 0,
                 static_cast<float*>(out), key.out.stride),
      "could not execute a product");
}

// The products that one thread has prepared. A training job has a few dozen shapes.
class ProductCache {
 public:
  void Execute(const ProductKey& key, void* out, void* a, void* b) {
    if (key.options.varying) return VaryingProduct(key, out, a, b);
    auto found = products_.find(key);
    if (found == products_.end()) found = products_.emplace(key, Prepare(key)).first;
    Product& product = found->second;
    product.a.set_data_handle(a);
    product.b.set_data_handle(b);
    product.out.set_data_handle(out);
    // The C function takes an array; the C++ one would build a map for every product.
    const std::array<dnnl_exec_arg_t, 3> operands = {{{DNNL_ARG_SRC, product.a.get()},
                                                      {DNNL_ARG_WEIGHTS, product.b.get()},
                                                      {DNNL_ARG_DST, product.out.get()}}};
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(product.primitive.get(), stream_.get(),
                               static_cast<int>(operands.size()), operands.data()),
        "could not execute a product");
    stream_.wait();
  }

 private:
  Product Prepare(const ProductKey& key) const {
    const auto stored = [](bool transposed) {
      return transposed ? Stored::kByColumns : Stored::kByRows;
    };
    const dnnl::memory::desc a = Describe(key.M, key.K, key.a, stored(key.options.transpose_a)),
                             b = Describe(key.K, key.N, key.b, stored(key.options.transpose_b)),
                             out = Describe(key.M, key.N, key.out, Stored::kByRows);
    dnnl::primitive_attr attributes;
    if (key.options.accumulate) {
      dnnl::post_ops post_ops;
      post_ops.append_sum(1);
      attributes.set_post_ops(post_ops);
    }
    const auto memory = [this](const dnnl::memory::desc& description) {
      return dnnl::memory(description, engine_, DNNL_MEMORY_NONE);
    };
    return {memory(a), memory(b), memory(out),
            dnnl::matmul(
                dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, out), attributes, engine_))};
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::map<ProductKey, Product> products_;
};

// Inside a parallel region oneDNN must neither prepare for nor start further threads.
class ThreadLimit {
 public:
  ThreadLimit() : before_(omp_get_max_threads()) {
    if (omp_in_parallel() != 0) omp_set_num_threads(1);
  }
  ~ThreadLimit() { omp_set_num_threads(before_); }
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int before_;
};

// A product as it was asked for: out = a b, or out += a b.
struct Request {
  Tensor out, a, b;
  MatmulOptions options;
  int64_t M, N, K;
};

// On the matrices where they are.
void Direct(ProductCache& cache, const Request& request) {
  const auto layout = [](Tensor matrix) { return MatrixLayout{matrix.dtype(), matrix.dim(1)}; };
  cache.Execute({.M = request.M,
                 .N = request.N,
                 .K = request.K,
                 .a = layout(request.a),
                 .b = layout(request.b),
                 .out = layout(request.out),
                 .options = request.options,
                 .threads = omp_get_max_threads()},
                request.out.data(), request.a.data(), request.b.data());
}

// Part of a float32 matrix, or of a float32 copy.
struct Panel {
  float* data;
  int64_t stride;
};

// What a panel is cut from: rows [begin, end) of an operand as stored, or its columns.
struct Cut {
  bool rows;
  int64_t begin, end;
};

// As CopyRows, on all threads.
template <class To, class From>
void ParallelCopyRows(int64_t rows, int64_t columns, const From* from, int64_t from_stride, To* to,
                      int64_t to_stride) {
  ParallelRows(rows, GrainFor(columns), [=](int64_t begin, int64_t end) {
    CopyRows(end - begin, columns, from + begin * from_stride, from_stride, to + begin * to_stride,
             to_stride);
  });
}

// The part of `matrix` in float32: itself, or a dense copy in `memory`.
Panel Widened(Tensor matrix, const Cut& cut, float* memory) {
  const int64_t stride = matrix.dim(1), size = cut.end - cut.begin;
  const int64_t first = cut.rows ? cut.begin * stride : cut.begin;
  if (matrix.dtype() == DType::kF32) return {matrix.As<float>() + first, stride};
  const int64_t rows = cut.rows ? size : matrix.dim(0), columns = cut.rows ? stride : size;
  ParallelCopyRows(rows, columns, matrix.As<BFloat16>() + first, stride, memory, columns);
  return {memory, columns};
}

// Through float32 copies of what is bf16, a panel of each matrix at a time: the copies take a few
// MiB whatever the size of the product, and stay in the cache.
class WidenedProduct {
 public:
  WidenedProduct(ProductCache& cache, const Request& request) : cache_(cache), request_(request) {
    // Panels narrower than this would cost more to copy than to multiply.
    constexpr int64_t kNarrowest = 64;
    constexpr int64_t kPanelElements = 1 << 20;
    const int64_t widest = std::max(kNarrowest, kPanelElements / request.K);
    columns_ = std::min(request.N, widest);
    rows_ = std::min({request.M, widest, std::max(kNarrowest, kPanelElements / columns_)});
    const int64_t elements = rows_ * request.K + request.K * columns_ + rows_ * columns_;
    // A larger one of the varying products, at some later step, shall find its memory.
    const int64_t least = request.options.varying ? 3 * kPanelElements : 0;
    float* const memory = ThreadScratch<WidenedProduct>(std::max(elements, least));
    a_memory_ = memory;
    b_memory_ = a_memory_ + rows_ * request.K;
    out_memory_ = b_memory_ + request.K * columns_;
  }

  void Run() {
    const auto [out, a, b, options, M, N, K] = request_;
    for (int64_t n = 0; n < N; n += columns_) {
      const int64_t n_end = std::min(N, n + columns_);
      const Panel b_panel = Widened(b, {options.transpose_b, n, n_end}, b_memory_);
      for (int64_t m = 0; m < M; m += rows_) {
        const int64_t m_end = std::min(M, m + rows_);
        const Panel a_panel = Widened(a, {!options.transpose_a, m, m_end}, a_memory_);
        Multiply(a_panel, b_panel, {m, m_end}, {n, n_end});
      }
    }
  }

 private:
  void Multiply(const Panel& a, const Panel& b, Range rows, Range columns) {
    const Tensor out = request_.out;
    const int64_t first = rows.begin * request_.N + columns.begin;
    const bool rounds = out.dtype() == DType::kBF16;
    if (rounds && request_.options.accumulate) {
      ParallelCopyRows(rows.size(), columns.size(), out.As<BFloat16>() + first, request_.N,
                       out_memory_, columns.size());
    }
    const Panel target =
        rounds ? Panel{out_memory_, columns.size()} : Panel{out.As<float>() + first, request_.N};
    cache_.Execute({.M = rows.size(),
                    .N = columns.size(),
                    .K = request_.K,
                    .a = {.stride = a.stride},
                    .b = {.stride = b.stride},
                    .out = {.stride = target.stride},
                    .options = request_.options,
                    .threads = omp_get_max_threads()},
                   target.data, a.data, b.data);
    if (rounds) {
      ParallelCopyRows(rows.size(), columns.size(), target.data, target.stride,
                       out.As<BFloat16>() + first, request_.N);
    }
  }

  ProductCache& cache_;
  const Request& request_;
  int64_t rows_, columns_;  // of a panel of out
  float *a_memory_, *b_memory_, *out_memory_;
};

void Multiply(const Request& request, BFloat16Products bf16) {
  const ThreadLimit limit;
  thread_local ProductCache cache;
  const bool a_narrow = request.a.dtype() == DType::kBF16,
             b_narrow = request.b.dtype() == DType::kBF16,
             out_narrow = request.out.dtype() == DType::kBF16;
  const bool all_wide = !a_narrow && !b_narrow && !out_narrow;
  // What takes varying shapes (VaryingProduct) takes float32 alone.
  const bool native = bf16 == BFloat16Products::kNative && !request.options.varying;
  if (all_wide || (a_narrow && b_narrow && native)) {
    Direct(cache, request);
  } else {
    WidenedProduct(cache, request).Run();
  }
}

}  // namespace

// oneDNN has bf16 products from AVX-512 on, for older machines only a reference implementation or
// none.
CpuOps::CpuOps()
    : CpuOps((static_cast<int>(dnnl::get_effective_cpu_isa()) & dnnl_cpu_isa_avx512_core) ==
                     dnnl_cpu_isa_avx512_core
                 ? BFloat16Products::kNative
                 : BFloat16Products::kWidened) {}

void CpuOps::Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
  const auto [M, N, K] = CheckedMatmul(out, a, b, options);
  if (M == 0 || N == 0) return;
  if (K == 0) {
    if (!options.accumulate) Zero(out);
    return;
  }
  try {
    Multiply({out, a, b, options, M, N, K}, bf16_products_);
  } catch (const dnnl::error& error) {
    Die(absl::StrFormat("oneDNN's product of %s and %s: %s (status %d)", a.shape(), b.shape(),
                        error.message, static_cast<int>(error.status)));
  }
}

void CpuOps::GroupedMatmul(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                           MatmulOptions options) const {
  ForEachGroup(out, a, b, rows_of_group, options,
               [&](const GroupProduct& p) { Matmul(p.out, p.a, p.b, p.options); });
}

}  // namespace twinstream::TWINSTREAM_CPU_ISA
