// Maximum: the larger of two numbers, where NaN beats everything, as in IEEE 754-2019. std::max
// loses a NaN or keeps it depending on the order of its arguments.
#pragma once

#include <cmath>

namespace twinstream {

inline double Maximum(double a, double b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace twinstream
