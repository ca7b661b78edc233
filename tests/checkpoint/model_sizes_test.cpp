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
  write_file_atomically(folder / "config.json", R"({"n_head": 2, "num_attention_heads": 2})");
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
           {.name = "llama",
           .vocab_size = 11,
           .layers = 12,
           .heads = 2,
           .width = 8,
           .tie_word_embeddings = false,
           .kv_heads = 1,
           .ffn_width = 6},
           {.name = "gpt", .vocab_size = 11, .context = 5, .layers = 12, .heads = 2, .width = 8}}) {
    const auto found = taken(options, folder / "weights.safetensors");
    EXPECT_EQ(shapes_of(found), shapes_of(options)) << options.name;
    EXPECT_EQ(found.heads,
              options.vocab_size == 11 && options.name != "s2vt" ? 2 : nn::ModelOptions().heads);
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

TEST(ModelSizes, OfALlamaComeFromItsConfigurationToo) {
  const TemporaryFolder folder;
  const auto file = folder / "weights.safetensors", config = folder / "config.json";
  const nn::ModelOptions llama{.name = "llama", .layers = 1, .heads = 4, .width = 16};
  EXPECT_ERROR(taken(llama, file), ErrorKind::usage,
               "[checkpoint] weights of llama do not contain the number of attention heads; got no "
               "config.json beside " +
                   file.string() + ", expected one with num_attention_heads (give --model.heads)");
  write_file_atomically(config, R"({"num_attention_heads": 2, "rms_norm_eps": 0.25, "head_dim": 8,
      "max_position_embeddings": 99, "rope_theta": 500, "rope_scaling": {"rope_type": "llama3",
      "factor": 32.0, "low_freq_factor": 2, "high_freq_factor": 5,
      "original_max_position_embeddings": 12}})");
  const auto found = taken(llama, file);
  EXPECT_EQ(found.heads, 2);
  EXPECT_EQ(found.kv_heads, 2);
  EXPECT_EQ(found.norm_eps, 0.25);
  EXPECT_EQ(found.context, 99);
  EXPECT_TRUE(found.tie_word_embeddings);
  EXPECT_EQ(found.rope.theta, 500);
  EXPECT_EQ(found.rope.scaling, "llama3");
  EXPECT_EQ(found.rope.factor, 32);
  EXPECT_EQ(found.rope.low_freq_factor, 2);
  EXPECT_EQ(found.rope.high_freq_factor, 5);
  EXPECT_EQ(found.rope.original_context, 12);
  // As transformers 5 writes it, and as it was before 4.43.
  write_file_atomically(config, R"({"num_attention_heads": 2, "rope_scaling": null,
      "rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}})");
  EXPECT_EQ(taken(llama, file).rope.theta, 7.5);
  EXPECT_EQ(taken(llama, file).rope.scaling, "default");
  EXPECT_EQ(taken(llama, file).norm_eps, 1e-6);
  write_file_atomically(
      config, R"({"num_attention_heads": 2, "rope_scaling": {"type": "linear", "factor": 3}})");
  EXPECT_EQ(taken(llama, file).rope.scaling, "linear");
  EXPECT_EQ(taken(llama, file).rope.factor, 3);

  const auto refuses = [&](const std::string& more, const std::string& message) {
    write_file_atomically(config, R"({"num_attention_heads": 2, )" + more + "}");
    EXPECT_ERROR(taken(llama, file), ErrorKind::usage, "[checkpoint] " + config.string() + message);
  };
  const std::string other = " describes a Llama that llama is not: ";
  refuses(R"("attention_bias": true)", other + "attention_bias; got true, expected false");
  refuses(R"("hidden_act": "gelu")", other + "hidden_act; got \"gelu\", expected \"silu\"");
  refuses(R"("head_dim": 4)", other + "head_dim; got 4, expected 8");
  refuses(R"("rope_scaling": {"rope_type": "yarn"})",
          other + "rope_type; got \"yarn\", expected one of default, linear, llama3");
  refuses(R"("rope_theta": "much")", " has no number rope_theta; got \"much\", expected a number");
  std::filesystem::remove(config);
  const nn::ModelOptions gpt{.name = "gpt", .layers = 1, .heads = 2, .width = 8};
  write_file_atomically(config, R"({"num_attention_heads": 2})");
  EXPECT_THROW(taken(gpt, file), Error);
}

}  // namespace
}  // namespace troika::checkpoint
