#include "tests/testing/golden.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace twinstream::testing {
namespace {

SafetensorsSource Open(const std::string& name) {
  absl::StatusOr<SafetensorsSource> source =
      SafetensorsSource::Open(absl::StrCat(GoldenDirectory(), "/", name, ".safetensors"));
  Check(source.ok(), "%s", source.status().ToString());
  return *std::move(source);
}

}  // namespace

std::string GoldenDirectory() {
  const char* const elsewhere = std::getenv("TWINSTREAM_GOLDEN_DIR");
  return elsewhere != nullptr ? elsewhere : TWINSTREAM_GOLDEN_DIR;
}

Golden::Golden(const std::string& name) : name_(name), source_(Open(name)) {}

const StoredArray& Golden::Array(const std::string& name) const {
  const StoredArray* array = source_.Find(name);
  Check(array != nullptr, "golden %s has no tensor %s", name_, name);
  return *array;
}

Shape Golden::ShapeOf(const std::string& name) const { return Array(name).shape; }

std::vector<double> Golden::Doubles(const std::string& name) const {
  return ToDoubles(Array(name).dtype, Array(name).bytes);
}

std::vector<float> Golden::Floats(const std::string& name) const {
  return ToFloats(Array(name).dtype, Array(name).bytes);
}

double Golden::Scalar(const std::string& name) const {
  const std::vector<double> values = Doubles(name);
  Check(values.size() == 1, "golden %s: %s has %d elements", name_, name, values.size());
  return values[0];
}

std::vector<std::string> Golden::Names(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const auto& [name, array] : source_.arrays()) {
    if (name.rfind(prefix + ".", 0) == 0) names.push_back(name.substr(prefix.size() + 1));
  }
  return names;
}

std::vector<int32_t> Golden::Tokens() const {
  const std::vector<double> values = Doubles("tokens");
  return std::vector<int32_t>(values.begin(), values.end());
}

const std::string& Golden::Metadata(const std::string& key) const {
  const auto found = source_.metadata().find(key);
  Check(found != source_.metadata().end(), "golden %s has no metadata %s", name_, key);
  return found->second;
}

int64_t Golden::Integer(const std::string& key) const {
  int64_t value = 0;
  Check(absl::SimpleAtoi(Metadata(key), &value), "golden %s: %s = %s", name_, key, Metadata(key));
  return value;
}

double Golden::Real(const std::string& key) const {
  double value = 0;
  Check(absl::SimpleAtod(Metadata(key), &value), "golden %s: %s = %s", name_, key, Metadata(key));
  return value;
}

}  // namespace twinstream::testing
