#include "launch/profile_report.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launch/host.h"

namespace twinstream {
namespace {

// What is said of a row, or of all of them together.
struct Line {
  std::string name;
  int64_t calls = 0;
  double seconds = 0, floor_seconds = 0;
};

std::string Extent(int64_t extent) {
  return extent == OpKey::kVarying ? "*" : absl::StrCat(extent);
}

// "product nt 512x1376x256 F32", "residual forward BF16".
std::string NameOf(const OpKey& key) {
  const std::string shape =
      key.m == 0 ? "" : absl::StrCat(" ", Extent(key.m), "x", Extent(key.n), "x", Extent(key.k));
  return absl::StrCat(key.op, shape, " ", NameOf(key.dtype));
}

std::vector<OpRow> ByTime(const OpProfile& profile) {
  std::vector<OpRow> rows(profile.rows().begin(), profile.rows().end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const OpRow& a, const OpRow& b) { return a.seconds > b.seconds; });
  return rows;
}

Line Sum(const OpProfile& profile, const Ceilings& ceilings) {
  Line sum = {.name = "all operations"};
  for (const OpRow& row : profile.rows()) {
    sum.calls += row.calls;
    sum.seconds += row.seconds;
    sum.floor_seconds += ceilings.FloorSeconds(row);
  }
  return sum;
}

// "91.2 GFLOP/s" of what multiplies matrices, "18.3 GB/s" of what moves memory.
std::string Rate(const OpWork& work, double seconds) {
  if (work.flops > 0) return absl::StrFormat("%.1f GFLOP/s", work.flops / seconds / 1e9);
  return absl::StrFormat("%.1f GB/s", work.bytes / seconds / 1e9);
}

void AppendLine(const Line& line, double step_seconds, absl::string_view rate, std::string* text) {
  absl::StrAppendFormat(text, "\n%-40s %8d %10.3f %7.1f %% %14s %10.3f %7.0f %%", line.name,
                        line.calls, line.seconds, 100 * line.seconds / step_seconds, rate,
                        line.floor_seconds, 100 * line.floor_seconds / line.seconds);
}

std::string RowJson(const OpRow& row, const Ceilings& ceilings) {
  return absl::StrFormat(
      R"(  {"op": "%s", "dtype": "%s", "m": %d, "n": %d, "k": %d, "calls": %d, "seconds": %.9g, )"
      R"("flops": %.17g, "bytes": %.17g, "floor_seconds": %.9g})",
      row.key.op, NameOf(row.key.dtype), row.key.m, row.key.n, row.key.k, row.calls, row.seconds,
      row.work.flops, row.work.bytes, ceilings.FloorSeconds(row));
}

}  // namespace

double Ceilings::FloorSeconds(const OpRow& row) const {
  const double peak = row.key.dtype == DType::kBF16 ? bf16_flops : f32_flops;
  return std::max(row.work.flops / peak, row.work.bytes / bandwidth);
}

Ceilings MeasureCeilings(Device& device) {
  const int64_t extent = PeakExtent(device);
  return {.f32_flops = MeasurePeakFlops(device, extent, DType::kF32),
          .bf16_flops = MeasurePeakFlops(device, extent, DType::kBF16),
          .bandwidth = MeasureBandwidth(device)};
}

std::string ProfileTable(const OpProfile& profile, const Ceilings& ceilings) {
  const double step_seconds = profile.step_seconds();
  std::string text = absl::StrFormat(
      "\nProfile of rank 0: %d steps%s, %.3f s each. Ceilings: products %.1f GFLOP/s (bf16 %.1f), "
      "memory %.1f GB/s.\n%-40s %8s %10s %9s %14s %10s %9s",
      profile.steps(), profile.forgot_first_step() ? " after the first" : "",
      step_seconds / static_cast<double>(profile.steps()), ceilings.f32_flops / 1e9,
      ceilings.bf16_flops / 1e9, ceilings.bandwidth / 1e9, "operation", "calls", "seconds",
      "of steps", "rate", "floor s", "of floor");
  for (const OpRow& row : ByTime(profile)) {
    AppendLine({.name = NameOf(row.key),
                .calls = row.calls,
                .seconds = row.seconds,
                .floor_seconds = ceilings.FloorSeconds(row)},
               step_seconds, Rate(row.work, row.seconds), &text);
  }
  const Line sum = Sum(profile, ceilings);
  AppendLine(sum, step_seconds, "", &text);
  const double rest = step_seconds - sum.seconds;
  absl::StrAppendFormat(&text, "\n%-49s %10.3f %7.1f %%", "outside: waiting, messages, host", rest,
                        100 * rest / step_seconds);
  return text;
}

std::string ProfileJson(const OpProfile& profile, const Ceilings& ceilings) {
  std::vector<std::string> rows;
  for (const OpRow& row : ByTime(profile)) rows.push_back(RowJson(row, ceilings));
  return absl::StrFormat(
      R"({"rank": 0, "steps": %d, "step_seconds": %.9g, "operation_seconds": %.9g, )"
      R"("f32_flops_per_second": %.9g, "bf16_flops_per_second": %.9g, "bytes_per_second": %.9g, )"
      "\"operations\": [\n%s\n]}\n",
      profile.steps(), profile.step_seconds(), Sum(profile, ceilings).seconds, ceilings.f32_flops,
      ceilings.bf16_flops, ceilings.bandwidth, absl::StrJoin(rows, ",\n"));
}

}  // namespace twinstream
