// One maker for each family of models; zoo.cpp gives them their names. They expect options that
// zoo.cpp has checked for what all models share, and refuse those only they cannot take.
#pragma once

#include <memory>

#include "troika/nn/model.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

enum class Stem {
  imagenet,  // the paper's own start, for 224 x 224
  cifar,     // for 32 x 32: early layers do not shrink the image
};

// Fully connected layers with ReLU. Blocks: layers.0, layers.1, ..., head.
std::shared_ptr<Model> make_mlp(const ModelOptions& options);

// ResNet-20/32/56 (He et al. 2015, section 4.2), shortcuts of option A: where the shape changes,
// every second pixel and zeros for the new channels, no parameters. Blocks: stem, layer1.0, ...,
// layer3.N, head; depth = 6 n + 2 with n blocks in each layer.
std::shared_ptr<Model> make_resnet_cifar(const ModelOptions& options, int64_t depth);

// ResNet-18/34/50/101 of torchvision, which puts a bottleneck's stride in its 3x3 convolution. The
// CIFAR stem is a 3x3 convolution of stride 1 without pooling. Blocks: stem, layer1.0, ...,
// layer4.N, head.
std::shared_ptr<Model> make_resnet(const ModelOptions& options, int64_t depth, Stem stem);

// VGG-11/16 (Simonyan and Zisserman 2014, A and D) of torchvision. For CIFAR the three-layer
// classifier becomes a single linear layer on the 512 averaged features. One block for each layer
// with parameters, named after it: features.0, ..., classifier.6.
std::shared_ptr<Model> make_vgg(const ModelOptions& options, int64_t depth, bool batch_norm,
                                Stem stem);

// Inception-v3 (Szegedy et al. 2015) of torchvision without its auxiliary classifier. Blocks:
// Conv2d_1a_3x3, ..., Mixed_7c, head.
std::shared_ptr<Model> make_inception(const ModelOptions& options);

// GPT-2 (Radford et al. 2019) as in Hugging Face's GPT2LMHeadModel: norm first, gelu_new, output
// matrix tied to the token embedding. Blocks: embed, transformer.h.0, ..., head; head borrows
// transformer.wte.weight.
std::shared_ptr<Model> make_gpt(const ModelOptions& options);

}  // namespace troika::nn
