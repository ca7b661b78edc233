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
  std::string family = {};  // empty: the name
  ModelOptions sizes = {};  // of a language model that is not named by its family
};

// A name for sizes of gpt (Radford et al. 2019, table 2) or of llama.
Entry preset(const std::string& name, const ModelOptions& sizes) {
  return {name, sizes.name == "gpt" ? make_gpt : make_llama, SampleKind::text, sizes.name, sizes};
}

ModelOptions gpt_sizes(int64_t layers, int64_t heads, int64_t width) {
  return {.name = "gpt", .layers = layers, .heads = heads, .width = width};
}

// The scaling of rope in Llama 3.2.
RopeOptions rope_of_llama_3_2() {
  return {.theta = 5e5, .scaling = "llama3", .factor = 32};
}

std::vector<Entry> make_presets() {
  return {
      preset("gpt2", gpt_sizes(12, 12, 768)),
      preset("gpt2-medium", gpt_sizes(24, 16, 1024)),
      preset("gpt2-large", gpt_sizes(36, 20, 1280)),
      preset("gpt2-xl", gpt_sizes(48, 25, 1600)),
      preset("llama-tiny", {.name = "llama",
                            .layers = 6,
                            .heads = 16,
                            .width = 256,
                            .tie_word_embeddings = false,
                            .ffn_width = 768,
                            .rope = {.theta = 5e5}}),
      preset("llama-160m", {.name = "llama",
                            .layers = 12,
                            .heads = 12,
                            .width = 768,
                            .tie_word_embeddings = false,
                            .ffn_width = 3072,
                            .norm_eps = 1e-6}),
      preset("llama-3.2-1b", {.name = "llama",
                              .layers = 16,
                              .heads = 32,
                              .width = 2048,
                              .kv_heads = 8,
                              .ffn_width = 8192,
                              .rope = rope_of_llama_3_2()}),
      preset("llama-3-8b", {.name = "llama",
                            .layers = 32,
                            .heads = 32,
                            .width = 4096,
                            .tie_word_embeddings = false,
                            .kv_heads = 8,
                            .ffn_width = 14336,
                            .rope = {.theta = 5e5}}),
  };
}

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
  entries.push_back({"llama", make_llama, SampleKind::text});
  for (auto& entry : make_presets()) entries.push_back(std::move(entry));
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
  auto model = entry.make(with_sizes(options));
  model->options_ = std::make_shared<const ModelOptions>(options);
  add_adapters(*model, options.lora);
  return model;
}

std::string model_family(const std::string& model_name) {
  const auto& family = find(model_name).family;
  return family.empty() ? model_name : family;
}

ModelOptions with_sizes(ModelOptions options) {
  const Entry& entry = find(options.name);
  if (entry.family.empty()) return options;
  const ModelOptions& sizes = entry.sizes;
  options.name = entry.family;
  options.layers = sizes.layers;
  options.heads = sizes.heads;
  options.width = sizes.width;
  if (entry.family != "llama") return options;
  options.kv_heads = sizes.kv_heads;
  options.ffn_width = sizes.ffn_width;
  options.norm_eps = sizes.norm_eps;
  options.rope = sizes.rope;
  options.tie_word_embeddings = sizes.tie_word_embeddings;
  return options;
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
