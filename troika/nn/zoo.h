// The models that come with Troika, under the parameter names of torchvision and of Hugging Face's
// GPT-2 if these have the model, so that weights can be exchanged.
//
// All are initialised as in the original, from LibTorch's default generator: the same
// torch::manual_seed gives the same weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/nn/model.h"

namespace troika::nn {

struct ModelOptions {
  std::string name = "resnet20";
  double dropout = 0.0;  // mlp, vgg*, inception_v3 and gpt; the others refuse it

  // For all models but gpt. They take [batch, in_channels, image_size, image_size] and give logits
  // [batch, num_classes].
  int64_t num_classes = 10;
  int64_t in_channels = 3;
  int64_t image_size = 32;  // rows and columns; only mlp requires exactly this size

  // For mlp.
  int64_t hidden_layers = 2;
  int64_t hidden_width = 512;

  // For gpt. It takes int64 [batch, length <= context] and gives logits [batch, length,
  // vocab_size]. GPT-2 small is {50257, 1024, 12, 12, 768}.
  int64_t vocab_size = 256;
  int64_t context = 256;
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t width = 384;
  // One of attention_names() (attention.h). Affects speed only; weights and results stay.
  std::string attn_implementation = "auto";
};

// Returns a model on the CPU, in float32, in training mode. Throws Error(usage) for an unknown name
// (naming the nearest known one) and for options the model cannot be built with.
std::shared_ptr<Model> make_model(const ModelOptions& options);

// Returns every name make_model() accepts.
std::vector<std::string> model_names();

// Returns random input of the shape the model takes: normal images, or uniform tokens of full
// context length.
at::Tensor example_input(const ModelOptions& options, int64_t batch);

}  // namespace troika::nn
