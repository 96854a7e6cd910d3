#include "proto/problems.h"

namespace twinstream {

bool Divides(int64_t divisor, int64_t number) {
  return divisor < 1 || number < 1 || number % divisor == 0;
}

int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (factor < 1 || __builtin_mul_overflow(product, factor, &product)) return 0;
  }
  return product;
}

}  // namespace twinstream
