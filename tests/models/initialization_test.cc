#include "models/initialization.h"

#include <cmath>
#include <cstdio>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "models/transformer_stage.h"

namespace twinstream {
namespace {

constexpr double kStd = 0.03;

ModelSpec Model(InitSpec::Method method,
                ModelSpec::Residual residual = ModelSpec::SIAMESE_HYBRID_PRE) {
  ModelSpec model;
  model.set_residual(residual);
  model.set_layers(3);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_kv_heads(2);
  model.set_head_dim(6);
  model.set_ffn(48);
  model.set_vocabulary(64);
  model.set_sequence(16);
  model.mutable_init()->set_method(method);
  model.mutable_init()->set_std(kStd);
  return model;
}

// Every declared parameter of a whole model, on one rank.
void ForEachParameter(const ModelSpec& model, absl::FunctionRef<void(const ParameterSpec&)> f) {
  const std::unique_ptr<Device> device = MakeDevice("cpu").value();
  const TensorRegion region = TensorRegion::Alone();
  const ExpertRegion experts = ExpertRegion::Alone();
  ParameterStore store;
  ModelContext context = {.model = model,
                          .device = *device,
                          .ops = device->ops(),
                          .region = region,
                          .experts = experts,
                          .parameters = store};
  const TransformerStage stage(context, {.layers = {0, model.layers()}});
  for (const std::unique_ptr<Parameter>& parameter : store.parameters()) f(parameter->spec);
}

// Of each init method by the tensor's name; 0: ones.
double ExpectedStd(const std::string& name, InitSpec::Method method) {
  const double d = 32, F = 48, L = 3;
  int layer = 0;
  std::sscanf(name.c_str(), "layers.%d.", &layer);
  const bool out = absl::EndsWith(name, "attention.out.weight");
  const bool down = absl::EndsWith(name, ".down.weight");
  const bool matrix = out || down || name == "embedding.weight" || name == "head.weight" ||
                      absl::EndsWith(name, "qkv.weight") || absl::EndsWith(name, "up.weight") ||
                      absl::EndsWith(name, "router.weight");
  if (!matrix) return 0;
  switch (method) {
    case InitSpec::NORMAL:
      return kStd;
    case InitSpec::FULL_MEGATRON:
      return out || down ? kStd / std::sqrt(2 * L) : kStd;
    case InitSpec::MITCHELL:
      if (out) return 1 / std::sqrt(2 * d * (layer + 1));
      if (down) return 1 / std::sqrt(2 * F * (layer + 1));
      return 1 / std::sqrt(d);
  }
  return -1;
}

TEST(Initialization, EveryTensorHasTheDeviationOfItsMethod) {
  for (InitSpec::Method method : {InitSpec::NORMAL, InitSpec::MITCHELL, InitSpec::FULL_MEGATRON}) {
    for (int64_t experts : {0, 5}) {
      ModelSpec model = Model(method);
      if (experts > 0) model.mutable_moe()->set_experts(experts);
      if (experts > 0) model.mutable_moe()->set_top_k(2);
      ForEachParameter(model, [&](const ParameterSpec& spec) {
        EXPECT_FLOAT_EQ(spec.init_std, static_cast<float>(ExpectedStd(spec.name, method)))
            << spec.name << " " << InitSpec::Method_Name(method);
      });
    }
  }
}

TEST(Initialization, DeepNormShrinksValuesAndMlps) {
  const double beta = std::pow(8.0 * 3, -0.25);
  for (InitSpec::Method method : {InitSpec::NORMAL, InitSpec::MITCHELL, InitSpec::FULL_MEGATRON}) {
    ForEachParameter(Model(method, ModelSpec::DEEP_NORM), [&](const ParameterSpec& spec) {
      const bool qkv = absl::EndsWith(spec.name, "qkv.weight");
      const bool shrinks = absl::EndsWith(spec.name, "attention.out.weight") ||
                           absl::StrContains(spec.name, ".mlp.");
      const double std = ExpectedStd(spec.name, method);
      EXPECT_FLOAT_EQ(spec.init_std, static_cast<float>(shrinks ? beta * std : std)) << spec.name;
      for (size_t box = 0; box < spec.boxes.size(); ++box) {  // of qkv: queries, keys, values
        EXPECT_FLOAT_EQ(spec.boxes[box].init_gain, static_cast<float>(qkv && box == 2 ? beta : 1.0))
            << spec.name;
      }
    });
  }
}

TEST(Initialization, VectorsNeverDecayAndTheEmbeddingIsKnownAsSuch) {
  ForEachParameter(Model(InitSpec::MITCHELL), [](const ParameterSpec& spec) {
    const WeightDecay expected = spec.name == "embedding.weight" ? WeightDecay::kEmbedding
                                 : spec.global.rank() == 1       ? WeightDecay::kVector
                                                                 : WeightDecay::kMatrix;
    EXPECT_EQ(spec.decay, expected) << spec.name;
  });
}

}  // namespace
}  // namespace twinstream
