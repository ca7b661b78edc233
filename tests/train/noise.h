// Batches of noise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/nn/zoo.h"

namespace troika::train {

// Noise of the model's shape.
class Noise : public data::Dataset {
 public:
  explicit Noise(const nn::ModelOptions& model) : model_(model) {}
  int64_t size() const override { return 1 << 20; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto inputs = nn::example_input(model_, static_cast<int64_t>(indices.size()));
    const bool text = model_.name == "gpt";
    return {inputs, text ? inputs.clone() : at::zeros({inputs.size(0)}, at::kLong)};
  }
  int64_t num_classes() const override { return model_.num_classes; }
  std::vector<int64_t> input_shape() const override { return {}; }

 private:
  const nn::ModelOptions model_;
};

}  // namespace troika::train
