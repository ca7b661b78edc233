// Small models in float64 for a tensor axis, and their batches.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "troika/compat/torch.h"
#include "troika/layout/box.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/zoo.h"

namespace troika::parallel::tensor_test {

using Named = std::map<std::string, at::Tensor>;

inline constexpr double kTolerance = 1e-10;
inline constexpr int64_t kBatch = 3, kLength = 8, kWords = 19;

inline nn::ModelOptions images(const std::string& name, int64_t size, double dropout = 0) {
  return {.name = name, .dropout = dropout, .num_classes = 5, .in_channels = 2, .image_size = size};
}

inline bool is_text(const nn::ModelOptions& options) {
  return nn::sample_kind(options.name) == nn::SampleKind::text;
}

inline nn::ModelOptions mlp(int64_t layers, double dropout) {
  return {.name = "mlp",
          .dropout = dropout,
          .num_classes = 5,
          .in_channels = 1,
          .image_size = 4,
          .hidden_layers = layers,
          .hidden_width = 8};
}

inline nn::ModelOptions language(const std::string& name, double dropout, bool is_tied,
                                 int64_t kv_heads = 0) {
  return {.name = name,
          .dropout = dropout,
          .vocab_size = kWords,
          .context = kLength,
          .layers = 2,
          .heads = 4,
          .width = 16,
          .tie_word_embeddings = is_tied,
          .attn_implementation = "eager",
          .kv_heads = kv_heads,
          .ffn_width = 12};
}

inline std::shared_ptr<nn::Model> make(const nn::ModelOptions& options) {
  auto model = nn::make_model(options);
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model->parameters()) {
    const auto numbers = at::sin(at::arange(parameter.numel(), at::kDouble) * 0.7 + ++phase);
    // Convolutions add up many channels.
    if (parameter.dim() < 4) parameter.add_(numbers.view_as(parameter), 0.1);
  }
  return model;
}

inline at::Tensor named(const nn::Model& model, const std::string& name) {
  for (const auto& [own, parameter] : nn::named_parameters(model)) {
    if (own == name) return parameter;
  }
  return {};
}

struct Batch {
  at::Tensor inputs, targets;
};

inline Batch batch_of(const nn::ModelOptions& options, int64_t step) {
  if (!is_text(options)) {
    const layout::Dims shape{kBatch, options.in_channels, options.image_size, options.image_size};
    const auto numbers = at::arange(c10::multiply_integers(shape), at::kDouble) + 100 * step;
    return {numbers.sin().view(shape).requires_grad_(),
            (at::arange(kBatch, at::kLong) * 3 + step) % 5};
  }
  const auto text = (at::arange(kBatch * (kLength + 1), at::kLong) * 7 + step * 5) % kWords;
  const auto rows = text.view({kBatch, kLength + 1});
  at::Tensor targets = rows.slice(1, 1).clone();
  targets[0][step % kLength] = -100;  // ignored
  return {rows.slice(1, 0, kLength), targets};
}

// The loss of the model's output layer or, where it has none or with `through_logits`, of its
// logits.
inline at::Tensor loss_of(nn::Model& model, const Batch& batch, bool through_logits = false,
                          const nn::LossTerms& terms = {}) {
  const nn::OutputLoss loss{.targets = batch.targets, .terms = terms};
  if (through_logits || !model.has_output_layer()) {
    return nn::cross_entropy(model.forward(batch.inputs), loss);
  }
  return nn::only(model.forward({batch.inputs}, std::make_shared<const nn::OutputLoss>(loss)));
}

inline void expect_near(const at::Tensor& found, const at::Tensor& expected,
                        const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const double difference = (found - expected).abs().max().item<double>();
  EXPECT_LE(difference, kTolerance * std::max(1.0, expected.abs().max().item<double>())) << what;
}

}  // namespace troika::parallel::tensor_test
