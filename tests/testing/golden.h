// Golden: results of the models' float64 reference, stored in tests/golden/NAME.safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace twinstream::testing {

// tests/golden, or where the environment TWINSTREAM_GOLDEN_DIR says it was taken.
std::string GoldenDirectory();

// All getters die when the file has no such tensor: the test names the wrong one.
class Golden {
 public:
  explicit Golden(const std::string& name);  // "lm_pre_norm"

  bool Has(const std::string& name) const { return source_.Find(name) != nullptr; }
  Shape ShapeOf(const std::string& name) const;
  std::vector<double> Doubles(const std::string& name) const;
  std::vector<float> Floats(const std::string& name) const;
  double Scalar(const std::string& name) const;  // of a tensor with one element
  // NAME of every tensor "PREFIX.NAME": Names("param") are the model's tensors, sorted.
  std::vector<std::string> Names(const std::string& prefix) const;

  // [steps, batch, sequence + 1]; inputs are all but the last of a row, targets all but the first.
  std::vector<int32_t> Tokens() const;
  // How the reference was set up, as text: "scheme", "dim", "layers", "tied" ("True", "False").
  const std::string& Metadata(const std::string& key) const;
  int64_t Integer(const std::string& key) const;
  double Real(const std::string& key) const;

 private:
  const StoredArray& Array(const std::string& name) const;

  std::string name_;
  SafetensorsSource source_;
};

}  // namespace twinstream::testing
