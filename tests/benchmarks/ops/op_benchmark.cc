#include "tests/benchmarks/ops/op_benchmark.h"

#include "google/protobuf/text_format.h"
#include "proto/job_spec.h"
#include "tests/benchmarks/model_shapes.h"

namespace twinstream::benchmarks {

std::vector<OpShape> OpShapes(const Device& device) {
  std::vector<OpShape> shapes;
  for (const ModelShape& shape : ModelShapes()) {
    JobSpec job;
    Check(google::protobuf::TextFormat::ParseFromString(shape.job, &job), "not a job: %s",
          shape.job);
    job = ResolveJobSpec(job, /*ranks=*/1);
    OpShape& op_shape = shapes.emplace_back();
    op_shape.name = shape.name;
    op_shape.model = job.model();
    op_shape.moe.set_experts(8);
    op_shape.moe.set_top_k(2);
    op_shape.batch = job.train().microbatch();
    op_shape.logits = CutLogits(device, op_shape.rows(), op_shape.model.vocabulary());
  }
  return shapes;
}

}  // namespace twinstream::benchmarks
