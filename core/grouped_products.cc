#include "core/grouped_products.h"

namespace twinstream {
namespace {

// Rows of one group's matrix, of which `matrices` holds `groups`, one below the other.
int64_t RowsOfMatrix(Tensor matrices, int64_t groups) {
  Check(matrices.shape().rank() == 2 && matrices.dim(0) % groups == 0,
        "the matrices of %d groups in %s", groups, matrices.shape());
  return matrices.dim(0) / groups;
}

void CheckRows(Tensor a, absl::Span<const int64_t> rows_of_group) {
  Check(a.shape().rank() == 2, "groups of rows of %s", a.shape());
  int64_t left = a.dim(0);
  for (int64_t rows : rows_of_group) {
    Check(0 <= rows && rows <= left, "a group of %d rows where %d of %d are left", rows, left,
          a.dim(0));
    left -= rows;
  }
}

}  // namespace

void ForEachGroup(Tensor out, Tensor a, Tensor b, absl::Span<const int64_t> rows_of_group,
                  const MatmulOptions& options, absl::FunctionRef<void(const GroupProduct&)> f) {
  const bool sums_rows = options.transpose_a;
  Check(!rows_of_group.empty(), "a grouped product of no groups");
  Check(!sums_rows || !options.transpose_b, "a grouped product of two transposed matrices");
  const Tensor matrices = sums_rows ? out : b;
  const int64_t matrix_rows = RowsOfMatrix(matrices, static_cast<int64_t>(rows_of_group.size()));
  CheckRows(a, rows_of_group);

  GroupProduct product = {.options = options};
  product.options.varying = true;
  int64_t begin = 0, matrix_begin = 0;
  for (int64_t rows : rows_of_group) {
    const int64_t end = begin + rows, matrix_end = matrix_begin + matrix_rows;
    const Tensor matrix = matrices.Rows(matrix_begin, matrix_end);
    product.out = sums_rows ? matrix : out.Rows(begin, end);
    product.a = a.Rows(begin, end);
    product.b = sums_rows ? b.Rows(begin, end) : matrix;
    product.shape = CheckedMatmul(product.out, product.a, product.b, product.options);
    f(product);
    begin = end;
    matrix_begin = matrix_end;
  }
}

}  // namespace twinstream
