#include "troika/nn/zoo.h"

#include <fmt/format.h>

#include <functional>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/layers.h"
#include "troika/nn/models.h"

namespace troika::nn {

namespace {

struct Entry {
  std::string name;
  std::function<std::shared_ptr<Model>(const ModelOptions&)> make;
  SampleKind samples = SampleKind::images;
};

std::vector<Entry> make_entries() {
  std::vector<Entry> entries = {{"mlp", make_mlp}};
  for (const int64_t depth : {20, 32, 56}) {
    entries.push_back({fmt::format("resnet{}", depth), [depth](const ModelOptions& options) {
                         return make_resnet_cifar(options, depth);
                       }});
  }
  for (const auto& [stem, suffix] : {std::pair(Stem::imagenet, ""), {Stem::cifar, "_cifar"}}) {
    for (const int64_t depth : {18, 34, 50, 101}) {
      entries.push_back({fmt::format("resnet{}{}", depth, suffix),
                         [depth, stem = stem](const ModelOptions& options) {
                           return make_resnet(options, depth, stem);
                         }});
    }
    for (const int64_t depth : {11, 16}) {
      for (const bool norm : {false, true}) {
        entries.push_back({fmt::format("vgg{}{}{}", depth, norm ? "_bn" : "", suffix),
                           [depth, norm, stem = stem](const ModelOptions& options) {
                             return make_vgg(options, depth, norm, stem);
                           }});
      }
    }
  }
  entries.push_back({"inception_v3", make_inception});
  entries.push_back({"alexnet", make_alexnet});
  entries.push_back({"unet", make_unet, SampleKind::masks});
  entries.push_back({"gpt", make_gpt, SampleKind::text});
  entries.push_back({"s2vt", make_s2vt, SampleKind::videos});
  return entries;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = make_entries();
  return all;
}

const Entry& find(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.name == name) return entry;
  }
  if (name.empty()) {
    throw Error("nn", ErrorKind::usage,
                {.what = "no model is named",
                 .got = "an empty name, as in the options of a run whose module a program gave",
                 .expected = fmt::format("one of {}", fmt::join(model_names(), ", ")),
                 .hint = "the program that made the module can load its weights"});
  }
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("unknown model {}", name),
               .expected = fmt::format("one of {}", fmt::join(model_names(), ", ")),
               .hint = fmt::format("did you mean {}?", nearest(name, model_names()))});
}

bool reads_images(SampleKind kind) {
  return kind == SampleKind::images || kind == SampleKind::masks;
}

at::Tensor random_tokens(const ModelOptions& options, int64_t batch) {
  return torch::randint(options.vocab_size, {batch, options.context}, torch::kInt64);
}

}  // namespace

std::shared_ptr<Model> make_model(const ModelOptions& options) {
  const Entry& entry = find(options.name);
  if (options.dropout < 0 || options.dropout >= 1) {
    throw Error("nn", ErrorKind::usage,
                {.what = fmt::format("dropout of {} is out of range", options.name),
                 .got = fmt::format("{}", options.dropout),
                 .expected = "0 <= dropout < 1"});
  }
  if (reads_images(entry.samples)) {
    require_at_least(options, "num_classes", options.num_classes, 1);
    require_at_least(options, "in_channels", options.in_channels, 1);
    require_at_least(options, "image_size", options.image_size, 1);
  }
  auto model = entry.make(options);
  model->options_ = std::make_shared<const ModelOptions>(options);
  return model;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const Entry& entry : entries()) names.push_back(entry.name);
  return names;
}

SampleKind sample_kind(const std::string& model_name) {
  return find(model_name).samples;
}

bool has_convolutions(const std::string& model_name) {
  return reads_images(sample_kind(model_name)) && model_name != "mlp";
}

Tensors example_inputs(const ModelOptions& options, int64_t batch) {
  const SampleKind kind = sample_kind(options.name);
  if (reads_images(kind)) {
    return {torch::randn({batch, options.in_channels, options.image_size, options.image_size})};
  }
  if (kind == SampleKind::text) return {random_tokens(options, batch)};
  return {torch::randn({batch, options.frames, options.feature_width}),
          random_tokens(options, batch)};
}

at::Tensor example_input(const ModelOptions& options, int64_t batch) {
  return only(example_inputs(options, batch));
}

}  // namespace troika::nn
