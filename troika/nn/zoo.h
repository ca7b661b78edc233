// The models that come with Troika, under the parameter names of torchvision and of Hugging Face's
// GPT-2 and Llama if these have the model, so that weights can be exchanged.
//
// All are initialised as in the original (alexnet, unet and s2vt by the defaults of PyTorch's
// layers, llama as in Hugging Face's), from LibTorch's default generator: the same
// torch::manual_seed gives the same weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/nn/lora.h"
#include "troika/nn/model.h"
#include "troika/nn/rope.h"

namespace troika::nn {

struct ModelOptions {
  std::string name = "resnet20";
  double dropout = 0.0;  // the residual networks and llama refuse it

  // For all models but gpt, llama and s2vt. They take [batch, in_channels, image_size, image_size]
  // and give logits [batch, num_classes]; unet [batch, image_size, image_size, num_classes].
  int64_t num_classes = 10;
  int64_t in_channels = 3;
  int64_t image_size = 32;  // rows and columns; only mlp requires exactly this size

  // For mlp.
  int64_t hidden_layers = 2;
  int64_t hidden_width = 512;  // also of the LSTMs of s2vt (1000 in the original)

  // For unet: the number of times that it halves the image, the convolutions of each level, and the
  // channels of the first level. These are Ronneberger's; torchgpipe's U-Net (B, C) is {5, B, C}.
  int64_t depth = 4;
  int64_t convolutions = 2;
  int64_t base_width = 64;

  // For s2vt. It takes `x` [batch, any number of frames, feature_width] and `captions`, int64
  // [batch, context], and gives logits [batch, context, vocab_size]. Words and frames are embedded
  // in `width` dimensions (500 in the original).
  int64_t feature_width = 64;
  int64_t frames = 16;      // of example_inputs()
  int64_t lstm_layers = 1;  // in each of the two stacks

  // For gpt and llama. They take int64 [batch, length <= context] and give logits [batch, length,
  // vocab_size].
  int64_t vocab_size = 256;
  int64_t context = 256;
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t width = 384;
  // Whether the output matrix is that of the token embedding. Otherwise it is `lm_head.weight`.
  bool tie_word_embeddings = true;
  // One of attention_names() (attention.h). Affects speed only; weights and results stay.
  std::string attn_implementation = "auto";

  // For llama: heads of keys and values, which divide heads (0: heads), and the width inside of the
  // feed-forward layers (0: 8/3 of the width, rounded up to a multiple of 256, as in Touvron et al.
  // 2023, arXiv 2302.13971, section 2.2).
  int64_t kv_heads = 0;
  int64_t ffn_width = 0;
  double norm_eps = 1e-5;
  RopeOptions rope = {};

  // For all models: adapters in place of training the model's own parameters.
  LoraOptions lora = {};
};

// Returns a model on the CPU, in float32, in training mode, with the adapters of `lora`, which are
// drawn after the model's own parameters. Throws Error(usage) for an unknown name
// (naming the nearest known one) and for options the model cannot be built with.
std::shared_ptr<Model> make_model(const ModelOptions& options);

// Returns options of the same model under the name of its family. A name such as gpt2-xl or
// llama-3-8b stands for sizes of a family, gpt or llama, and these replace the given ones: layers,
// heads and width, and for llama also kv_heads, ffn_width, norm_eps, rope and tie_word_embeddings.
// Context and vocabulary stay. Other options are returned unchanged. Throws Error(usage) for an
// unknown name.
ModelOptions with_sizes(ModelOptions options);
// Returns the name that with_sizes() gives: the family of gpt2-xl is gpt, that of resnet18 itself.
std::string model_family(const std::string& model_name);

// Returns every name make_model() accepts.
std::vector<std::string> model_names();

// The samples that a model is made for.
enum class SampleKind {
  images,  // with a class for each image
  masks,   // images with a class for each pixel
  text,    // tokens with the next token at each place
  videos,  // features of frames, and a caption with the next token at each place
};

// Throw Error(usage) for an unknown name.
SampleKind sample_kind(const std::string& model_name);
bool has_convolutions(const std::string& model_name);

// Returns random inputs in the order of Model::input_names(): normal images and features, and
// uniform tokens of full context length.
Tensors example_inputs(const ModelOptions& options, int64_t batch);
// The same for models of one input.
at::Tensor example_input(const ModelOptions& options, int64_t batch);

}  // namespace troika::nn
