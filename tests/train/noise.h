// A data set of noise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/nn/zoo.h"

namespace troika::train {

// Noise with the shape of the model's inputs.
class Noise : public data::Dataset {
 public:
  explicit Noise(const nn::ModelOptions& model) : model_(model) {}
  int64_t size() const override { return 1 << 20; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    const auto count = static_cast<int64_t>(indices.size());
    const auto inputs = nn::example_inputs(model_, count);
    data::Batch batch{inputs.front(), {}};
    switch (nn::sample_kind(model_.name)) {
      case nn::SampleKind::images:
        batch.targets = at::zeros({count}, at::kLong);
        break;
      case nn::SampleKind::masks:
        batch.targets = at::zeros({count, model_.image_size, model_.image_size}, at::kLong);
        break;
      case nn::SampleKind::text:
        batch.targets = inputs.front().clone();
        break;
      case nn::SampleKind::videos:
        batch.named["captions"] = inputs.back();
        batch.targets = inputs.back().clone();
        break;
    }
    return batch;
  }
  int64_t num_classes() const override { return model_.num_classes; }
  std::vector<int64_t> input_shape() const override { return {}; }

 private:
  const nn::ModelOptions model_;
};

}  // namespace troika::train
