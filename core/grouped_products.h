// The products that Ops::GroupedMatmul consists of.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/op_checks.h"
#include "core/ops.h"

namespace twinstream {

// One group's, as Ops::Matmul takes it; options.varying.
struct GroupProduct {
  Tensor out, a, b;
  MatmulOptions options;
  MatmulShape shape;
};

// f of every group's product, those without rows too, in the order of the groups. Dies before the
// first unless the tensors fit each other and the rows are there.
void ForEachGroup(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                  const MatmulOptions& options, absl::FunctionRef<void(const GroupProduct&)> f);

}  // namespace twinstream
