// Matrix products on the CPU, by oneDNN: the only file that knows it.
#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <map>

#include "core/cpu/ops.h"

namespace twinstream {
namespace {

using Tag = dnnl::memory::format_tag;

// What a prepared product depends on.
struct ProductKey {
  int64_t M = 0, N = 0, K = 0;
  MatmulOptions options;
  int threads = 1;  // a prepared product has its split over threads built in

  friend bool operator<(const ProductKey& a, const ProductKey& b) {
    return a.Fields() < b.Fields();
  }

 private:
  std::array<int64_t, 7> Fields() const {
    return {M, N, K, options.transpose_a, options.transpose_b, options.accumulate, threads};
  }
};

// A prepared product, and the memory objects that carry its operands.
struct Product {
  dnnl::memory a, b, out;
  dnnl::matmul primitive;
};

// The products that one thread has prepared. A training job has a few dozen shapes.
class ProductCache {
 public:
  void Execute(const ProductKey& key, float* out, float* a, float* b) {
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
    const auto describe = [](int64_t rows, int64_t columns, bool transposed) {
      return dnnl::memory::desc({rows, columns}, dnnl::memory::data_type::f32,
                                transposed ? Tag::ba : Tag::ab);
    };
    const dnnl::memory::desc a = describe(key.M, key.K, key.options.transpose_a);
    const dnnl::memory::desc b = describe(key.K, key.N, key.options.transpose_b);
    const dnnl::memory::desc out = describe(key.M, key.N, false);
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

// Another kernel family of oneDNN, which takes any shape as it comes: preparing a product costs as
// much as computing a small one, and shapes of which there is no end would fill the cache.
void VaryingProduct(const ProductKey& key, float* out, const float* a, const float* b) {
  const auto [transpose_a, transpose_b, accumulate, varying] = key.options;
  dnnl::error::wrap_c_api(dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', key.M, key.N,
                                     key.K, 1, a, transpose_a ? key.M : key.K, b,
                                     transpose_b ? key.K : key.N, accumulate ? 1 : 0, out, key.N),
                          "could not execute a product");
}

}  // namespace

void CpuOps::Matmul(Tensor out, Tensor a, Tensor b, MatmulOptions options) const {
  Check(out.shape().rank() == 2 && a.shape().rank() == 2 && b.shape().rank() == 2,
        "product of %s and %s into %s: all must be matrices", a.shape(), b.shape(), out.shape());
  const int64_t M = out.dim(0), N = out.dim(1), K = a.dim(options.transpose_a ? 0 : 1);
  Check(a.dim(options.transpose_a ? 1 : 0) == M && b.dim(options.transpose_b ? 1 : 0) == K &&
            b.dim(options.transpose_b ? 0 : 1) == N,
        "product of %s%s and %s%s into %s", a.shape(), options.transpose_a ? "'" : "", b.shape(),
        options.transpose_b ? "'" : "", out.shape());
  if (M == 0 || N == 0) return;
  if (K == 0) {
    if (!options.accumulate) Zero(out);
    return;
  }
  const ThreadLimit limit;
  thread_local ProductCache cache;
  const ProductKey key = {M, N, K, options, omp_get_max_threads()};
  try {
    if (options.varying) {
      VaryingProduct(key, out.As<float>(), a.As<float>(), b.As<float>());
    } else {
      cache.Execute(key, out.As<float>(), a.As<float>(), b.As<float>());
    }
  } catch (const dnnl::error& error) {
    Die(absl::StrFormat("oneDNN's product of %s and %s: %s (status %d)", a.shape(), b.shape(),
                        error.message, static_cast<int>(error.status)));
  }
}

}  // namespace twinstream
