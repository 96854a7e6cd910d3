#include "tests/testing/residual_cases.h"

namespace twinstream::testing {
namespace {

using X = ResidualRead::X;
using Y = ResidualWrite::Y;

}  // namespace

std::vector<ResidualScheme> ResidualSchemes() {
  const ResidualRead norm = {.x = X::kNorm}, base = {.x = X::kBase};
  const ResidualRead normed_base = {.x = X::kBase, .base_norm = true};
  const ResidualRead final_sum = {.x = X::kBase, .base_norm = true, .y = true};
  const ResidualRead final_normed_sum = {
      .x = X::kBase, .base_norm = true, .y = true, .input_norm = true};
  const ResidualWrite add = {}, deep = {.base_gain = 1.68F}, both = {.y = Y::kAdd};
  const ResidualWrite siamese0 = {.x_gain = 0.70710678F, .y = Y::kAdd};
  const ResidualWrite siamese1 = {.x_gain = 0.5F, .y = Y::kAdd};
  const ResidualUnit span_mlp = {{.x = X::kNone, .y = true}, {}};
  const ResidualWrite span = {.x_gain = 0, .y = Y::kSet};
  const ResidualUnit peri = {{.x = X::kBase, .input_norm = true}, {.output_norm = true}};
  const ResidualRead post_to_pre = {.x = X::kBase, .base_norm = true, .input_norm = true};
  const ResidualRead hybrid0 = {.x = X::kNorm, .y = true}, hybrid1 = {.x = X::kScale, .y = true};
  return {
      {"PRE_NORM", false, {{norm, add}, {norm, add}}, norm},
      {"POST_NORM", false, {{base, add}, {normed_base, add}}, normed_base},
      {"DEEP_NORM", false, {{base, deep}, {normed_base, deep}}, normed_base},
      {"HYBRID_NORM", false, {{norm, add}, {normed_base, add}, {base, add}}, norm},
      {"SPAN_NORM", false, {{norm, span}, span_mlp, {normed_base, span}, span_mlp}, normed_base},
      {"PERI_NORM", false, {peri, peri}, norm},
      {"MIX_LN", false, {{base, add}, {normed_base, add}, {post_to_pre, add}, {norm, add}}, norm},
      {"RESI_DUAL", true, {{base, both}, {normed_base, both}}, final_sum},
      {"SIAMESE_POST_PRE",
       true,
       {{final_normed_sum, siamese0}, {final_normed_sum, siamese1}},
       final_normed_sum},
      {"SIAMESE_HYBRID_PRE",
       true,
       {{hybrid0, siamese0}, {final_normed_sum, siamese0}, {hybrid1, siamese1}},
       final_normed_sum},
  };
}

std::vector<ResidualCase> CasesOf(const ResidualScheme& scheme) {
  std::vector<ResidualCase> cases;
  bool y = scheme.y_from_the_start;
  for (size_t k = 0; k < scheme.units.size(); ++k) {
    const ResidualUnit& unit = scheme.units[k];
    const ResidualRead* const next =
        k + 1 < scheme.units.size() ? &scheme.units[k + 1].read : &scheme.final;
    const bool y_after = y || unit.write.y == Y::kSet;
    const std::string name = scheme.name + " unit " + std::to_string(k);
    cases.push_back({name + " read", {.read = &unit.read}, y, y});
    cases.push_back(
        {name + " write", {.read_before = &unit.read, .write = &unit.write}, y, y_after});
    cases.push_back({name + " write and read",
                     {.read_before = &unit.read, .write = &unit.write, .read = next},
                     y,
                     y_after});
    y = y_after;
  }
  cases.push_back({scheme.name + " final", {.read = &scheme.final}, y, y});
  return cases;
}

}  // namespace twinstream::testing
