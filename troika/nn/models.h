// Constructors of the model families; zoo.cpp maps names to them. zoo.cpp has already checked the
// options that all models share; each function checks only its own.
#pragma once

#include <memory>

#include "troika/nn/model.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

enum class Stem {
  imagenet,  // the paper's own stem, for 224 x 224
  cifar,     // for 32 x 32: early layers keep the image's size
};

// Fully connected layers with ReLU. Blocks: layers.0, layers.1, ..., head.
std::shared_ptr<Model> make_mlp(const ModelOptions& options);

// ResNet-20/32/56 (He et al. 2015, section 4.2) with shortcuts of option A: where the shape
// changes, they take every second pixel, pad new channels with zeros, and have no parameters.
// Blocks: stem, layer1.0, ..., layer3.N, head; depth = 6 n + 2 with n blocks in each layer.
std::shared_ptr<Model> make_resnet_cifar(const ModelOptions& options, int64_t depth);

// ResNet-18/34/50/101 as in torchvision, with a bottleneck's stride in its 3x3 convolution. The
// CIFAR stem is a 3x3 convolution of stride 1 without pooling. Blocks: stem, layer1.0, ...,
// layer4.N, head.
std::shared_ptr<Model> make_resnet(const ModelOptions& options, int64_t depth, Stem stem);

// VGG-11/16 (Simonyan and Zisserman 2014, A and D) as in torchvision. For CIFAR a single linear
// layer on the 512 averaged features replaces the three-layer classifier. There is one block for
// each layer with parameters, named after it: features.0, ..., classifier.6.
std::shared_ptr<Model> make_vgg(const ModelOptions& options, int64_t depth, bool batch_norm,
                                Stem stem);

// Inception-v3 (Szegedy et al. 2015) as in torchvision, without its auxiliary classifier. Blocks:
// Conv2d_1a_3x3, ..., Mixed_7c, head.
std::shared_ptr<Model> make_inception(const ModelOptions& options);

// AlexNet (Krizhevsky 2014, arXiv 1404.5997, the network of one tower) as in torchvision. There is
// one block for each layer with parameters, named after it: features.0, ..., classifier.6.
std::shared_ptr<Model> make_alexnet(const ModelOptions& options);

// U-Net (Ronneberger et al. 2015, arXiv 1505.04597) in the simplified form of torchgpipe's
// benchmark (Kim et al. 2020, arXiv 2004.09910): convolutions 3x3 without bias, then dropout of
// channels, instance norm and leaky ReLU; pooling and nearest-neighbour upsampling by 2; a last
// convolution 1x1. Level i of the encoder has base_width 2^i channels, the bottleneck twice those
// of the last level. There is one block for each convolution: encoder.0.0, ..., bottleneck.0, ...,
// decoder.0.0, ..., head. The last block of encoder level i also gives `skip.i`, which the first
// block of decoder level i takes.
std::shared_ptr<Model> make_unet(const ModelOptions& options);

// S2VT (Venugopalan et al. 2015, arXiv 1505.00487). A first stack of LSTMs reads the frames, then
// zeros while the caption is written. A second stack reads the output of the first, concatenated
// with zeros during the frames and with the embedded words during the caption. A linear layer
// without bias turns the outputs during the caption into logits. Dropout is between layers, not
// between time steps. Blocks: frames, frame_lstm.0, ..., words, word_lstm.0, ..., head. Block words
// takes `captions` too.
std::shared_ptr<Model> make_s2vt(const ModelOptions& options);

// GPT-2 (Radford et al. 2019) as Hugging Face's GPT2LMHeadModel: pre-norm, gelu_new. Blocks:
// embed, transformer.h.0, ..., head. With an output matrix tied to the token embedding, head
// borrows transformer.wte.weight.
std::shared_ptr<Model> make_gpt(const ModelOptions& options);

// Llama (Touvron et al. 2023, arXiv 2302.13971; with grouped queries, Llama 3) as Hugging Face's
// LlamaForCausalLM, without biases. Weights are drawn from N(0, 0.02^2). Blocks: embed,
// model.layers.0, ..., head. With an output matrix tied to the token embedding, head borrows
// model.embed_tokens.weight.
std::shared_ptr<Model> make_llama(const ModelOptions& options);

}  // namespace troika::nn
