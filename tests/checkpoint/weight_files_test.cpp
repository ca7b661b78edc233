// Weights in several files with an index, as Hugging Face saves large models.
#include "troika/checkpoint/weight_files.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/checkpoint/foreign_weights.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {
namespace {

class WeightFiles : public testing::Test {
 protected:
  void write_index(const std::string& text) { write_file_atomically(index_, text); }
  void refuses(const std::string& text, const std::string& message) {
    write_index(text);
    EXPECT_ERROR(load_weight_files(index_), ErrorKind::usage, message);
  }

  const TemporaryFolder folder_;
  const std::filesystem::path index_ = folder_ / "model.safetensors.index.json";
};

TEST_F(WeightFiles, AreReadByTheirIndex) {
  const auto a = at::arange(3, at::kFloat), b = at::ones({2, 2}), c = at::full({1}, 7.0F);
  save_safetensors(folder_ / "model-00001-of-00002.safetensors", {{"a", a}, {"unnamed", b}});
  save_safetensors(folder_ / "model-00002-of-00002.safetensors", {{"b", b}, {"c", c}});
  write_index(R"({"metadata": {"total_size": 32}, "weight_map": {
      "a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors",
      "b": "model-00002-of-00002.safetensors"}})");
  for (const auto& found : {load_weight_files(index_), load_weights(index_)}) {
    std::map<std::string, at::Tensor> by_name(found.begin(), found.end());
    ASSERT_EQ(by_name.size(), 3u);
    EXPECT_TRUE(by_name.at("a").equal(a));
    EXPECT_TRUE(by_name.at("b").equal(b));
    EXPECT_TRUE(by_name.at("c").equal(c));
  }
  const auto one = load_weight_files(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_EQ(one.size(), 2u);
}

TEST_F(WeightFiles, RefuseAWrongIndex) {
  const std::string is_none =
      "[checkpoint] " + index_.string() + " is not an index of safetensors files; got ";
  for (const char* text : {"", "[]", "{}", R"({"weight_map": 3})"}) {
    refuses(text, is_none +
                      "no object `weight_map`, expected an object with the file of each "
                      "tensor");
  }
  refuses(R"({"weight_map": {"a": 3}})",
          is_none + "3 for a, expected the name of a file beside it");
  refuses(R"({"weight_map": {"a": "../a"}})",
          is_none + "\"../a\" for a, expected the name of a file beside it");
  save_safetensors(folder_ / "one", {{"b", at::ones({1})}});
  refuses(R"({"weight_map": {"a": "one"}})",
          "[checkpoint] one lacks a tensor that " + index_.string() +
              " finds there; got no a (is the download complete?)");
}

// LlamaModel's names, an old file's buffers, and an output matrix that equals the embedding.
TEST_F(WeightFiles, OfLlamaHaveItsNames) {
  nn::ModelOptions options{.name = "llama", .vocab_size = 11, .layers = 1, .heads = 2, .width = 8};
  const auto own = model_state(*nn::make_model(options));
  NamedTensors theirs;
  for (const auto& [name, tensor] : own) {
    theirs.emplace_back(name.substr(std::string("model.").size()), tensor);
  }
  theirs.emplace_back("layers.0.self_attn.rotary_emb.inv_freq", at::ones({2}));
  theirs.emplace_back("lm_head.weight", own.front().second.clone());
  const auto found = adapt_foreign(theirs, own, "file");
  ASSERT_EQ(found.size(), own.size());
  for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(found[i].first, own[i].first);
  theirs.back().second.add_(1);
  EXPECT_ERROR(adapt_foreign(theirs, own, "file"), ErrorKind::usage,
               "[checkpoint] the output of file is not its token embedding; got `lm_head.weight` "
               "of other numbers than `model.embed_tokens.weight`, expected a model with tied "
               "weights (model.tie_word_embeddings=false)");
  options.tie_word_embeddings = false;
  const auto apart = model_state(*nn::make_model(options));
  EXPECT_EQ(adapt_foreign(theirs, apart, "file").size(), apart.size());
}

}  // namespace
}  // namespace troika::checkpoint
