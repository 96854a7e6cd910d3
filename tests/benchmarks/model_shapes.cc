#include "tests/benchmarks/model_shapes.h"

namespace twinstream::benchmarks {
namespace {

constexpr ModelShape kShapes[] = {
    {"tiny", R"(model { layers: 2 hidden: 64 heads: 2 ffn: 176 vocabulary: 256 sequence: 32 }
                train { global_batch: 4 microbatch: 4 })"},
    {"S", R"(model { layers: 8 hidden: 256 heads: 4 ffn: 688 vocabulary: 8192 sequence: 256 }
             train { global_batch: 8 microbatch: 8 })"},
    {"M", R"(model { layers: 12 hidden: 512 heads: 8 ffn: 1376 vocabulary: 16384 sequence: 512 }
             train { global_batch: 4 microbatch: 4 })"},
    {"124M", R"(model { layers: 12 hidden: 768 heads: 12 ffn: 2048 vocabulary: 50304 sequence: 512
                        tied_embeddings: true }
                train { global_batch: 2 microbatch: 2 })"},
    {"400M",
     R"(model { layers: 17 hidden: 1024 heads: 16 ffn: 4096 vocabulary: 50304 sequence: 512 }
                train { global_batch: 1 microbatch: 1 })"},
    {"1.3B", R"(model { layers: 16 hidden: 2048 heads: 16 ffn: 8192 vocabulary: 50304
                        sequence: 2048 }
                train { global_batch: 1 microbatch: 1 })"},
};

}  // namespace

absl::Span<const ModelShape> ModelShapes() { return kShapes; }

}  // namespace twinstream::benchmarks
