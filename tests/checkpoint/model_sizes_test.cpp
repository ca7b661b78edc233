// The options of a model that `troika import` finds from names and shapes.
#include "troika/checkpoint/model_sizes.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {
namespace {

std::vector<std::vector<int64_t>> shapes_of(const nn::ModelOptions& options) {
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& [name, tensor] : model_state(*nn::make_model(options))) {
    shapes.push_back(tensor.sizes().vec());
  }
  return shapes;
}

nn::ModelOptions taken(const nn::ModelOptions& from, const std::filesystem::path& file) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : model_state(*nn::make_model(from))) {
    tensors.emplace_back("module." + name, tensor);
  }
  nn::ModelOptions found{.name = from.name};
  for (const auto size : kGivenSizes) found.*size = kFromFile;
  take_sizes(found, tensors, file);
  return found;
}

TEST(ModelSizes, AreThoseOfTheTensors) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "config.json", R"({"n_head": 2})");
  for (const auto& options : std::vector<nn::ModelOptions>{
           {.name = "mlp",
         .num_classes = 5,
         .in_channels = 1,
         .image_size = 6,
         .hidden_layers = 3,
         .hidden_width = 7},
           {.name = "mlp", .num_classes = 5, .image_size = 4, .hidden_layers = 0},
           {.name = "resnet20", .num_classes = 9, .in_channels = 4},
           {.name = "alexnet", .num_classes = 3, .in_channels = 1, .image_size = 63},
           {.name = "inception_v3", .num_classes = 3, .image_size = 75},
           {.name = "unet",
           .num_classes = 6,
           .in_channels = 1,
           .image_size = 1024,
           .depth = 9,
           .convolutions = 1,
           .base_width = 2},
           {.name = "s2vt",
           .hidden_width = 6,
           .feature_width = 5,
           .lstm_layers = 3,
           .vocab_size = 11,
           .width = 7},
           {.name = "gpt", .vocab_size = 11, .context = 5, .layers = 12, .heads = 2, .width = 8}}) {
    const auto found = taken(options, folder / "weights.safetensors");
    EXPECT_EQ(shapes_of(found), shapes_of(options)) << options.name;
    EXPECT_EQ(found.heads, options.name == "gpt" ? 2 : nn::ModelOptions().heads);
  }
}

TEST(ModelSizes, HeadsMustBeSaidSomewhere) {
  const TemporaryFolder folder;
  const nn::ModelOptions gpt{.name = "gpt", .layers = 1, .heads = 2, .width = 8};
  const auto file = folder / "weights.safetensors", config = folder / "config.json";
  EXPECT_ERROR(taken(gpt, file), ErrorKind::usage,
               "[checkpoint] weights of gpt do not contain the number of attention heads; got no "
               "config.json beside " +
                   file.string() + ", expected one with n_head (give --model.heads)");
  for (const char* text : {"", "{", "[]", "{}", R"({"n_head": "2"})", R"({"n_head": -2})"}) {
    write_file_atomically(config, text);
    EXPECT_ERROR(taken(gpt, file), ErrorKind::usage,
                 "[checkpoint] " + config.string() +
                     " has no number of attention heads; got another n_head, or no JSON, expected "
                     "an object with a number n_head");
  }
  write_file_atomically(config, R"({"n_head": 2, "scale_attn_by_inverse_layer_idx": true})");
  EXPECT_ERROR(taken(gpt, file), ErrorKind::usage,
               "[checkpoint] " + config.string() +
                   " describes a GPT-2 that gpt is not: scale_attn_by_inverse_layer_idx; got true, "
                   "expected false");
}

}  // namespace
}  // namespace troika::checkpoint
