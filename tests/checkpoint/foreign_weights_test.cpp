#include "troika/checkpoint/foreign_weights.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/checkpoint/checkpoint.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::checkpoint {
namespace {

class ForeignWeights : public testing::Test {
 protected:
  static std::shared_ptr<nn::Model> make_gpt(uint64_t seed, bool is_tied = true) {
    torch::manual_seed(seed);
    return nn::make_model({.name = "gpt",
                           .vocab_size = 5,
                           .context = 4,
                           .layers = 2,
                           .heads = 2,
                           .width = 8,
                           .tie_word_embeddings = is_tied});
  }

  // Another model gets the numbers of `expected` from `foreign`.
  static void expect_loads(const NamedTensors& foreign, const NamedTensors& expected) {
    const auto model = make_gpt(2);
    const auto own = model_state(*model);
    load_into(own, adapt_foreign(foreign, own, "file"), "file");
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(own[i].second.equal(expected[i].second)) << own[i].first;
    }
  }

  static NamedTensors renamed(NamedTensors list,
                              const std::function<std::string(const std::string&)>& rename) {
    for (auto& [name, tensor] : list) name = rename(name);
    return list;
  }

  const std::shared_ptr<nn::Model> gpt_ = make_gpt(1);
  const NamedTensors state_ = model_state(*gpt_);
};

TEST_F(ForeignWeights, HuggingFaceWithItsMasksAndTiedOutput) {
  auto foreign = state_;
  foreign.emplace_back("lm_head.weight", state_[0].second);
  foreign.emplace_back("transformer.h.0.attn.bias", at::ones({1, 1, 4, 4}, at::kBool));
  foreign.emplace_back("transformer.h.0.attn.masked_bias", at::tensor(-1e4));
  expect_loads(foreign, state_);
}

TEST_F(ForeignWeights, Gpt2ModelWithoutItsHead) {
  auto foreign = renamed(state_, [](const auto& name) { return name.substr(12); });
  ASSERT_EQ(foreign[0].first, "wte.weight");
  foreign.emplace_back("h.1.attn.bias", at::ones({1, 1, 4, 4}));
  expect_loads(foreign, state_);
}

TEST_F(ForeignWeights, LayersStoredOutByIn) {
  auto foreign = state_;
  int turned = 0;
  for (auto& [name, tensor] : foreign) {
    if (name.find(".c_") == std::string::npos || tensor.dim() != 2) continue;
    tensor = tensor.t().contiguous();
    ++turned;
  }
  ASSERT_EQ(turned, 8) << "square ones among them";
  expect_loads(foreign, state_);
}

TEST_F(ForeignWeights, OfDistributedDataParallel) {
  expect_loads(renamed(state_, [](const auto& name) { return "module." + name; }), state_);
}

TEST_F(ForeignWeights, RefusesAnOutputThatIsNotTied) {
  auto foreign = state_;
  foreign.emplace_back("lm_head.weight", state_[0].second + 1);
  EXPECT_ERROR(
      adapt_foreign(foreign, state_, "file"), ErrorKind::usage,
      "[checkpoint] the output of file is not its token embedding; got `lm_head.weight` of "
      "other numbers than `transformer.wte.weight`, expected a model with tied weights "
      "(model.tie_word_embeddings=false)");
}

TEST_F(ForeignWeights, AnOutputLayerOfItsOwnBeginsAsTheFilesOrAsTheEmbedding) {
  const auto own = model_state(*make_gpt(2, /*is_tied=*/false));
  const auto output_of = [&](const NamedTensors& foreign) {
    load_into(own, adapt_foreign(foreign, own, "file"), "file");
    return own.back().second;
  };
  ASSERT_EQ(own.back().first, "lm_head.weight");
  EXPECT_TRUE(output_of(state_).equal(state_[0].second));
  auto foreign = state_;
  foreign.emplace_back("lm_head.weight", state_[0].second + 1);
  EXPECT_TRUE(output_of(foreign).equal(state_[0].second + 1));
}

TEST_F(ForeignWeights, OtherNamesAreSaid) {
  auto foreign = state_;
  foreign[3].first = "transformer.h.0.ln_1.beta";
  foreign.emplace_back("classifier.bias", at::ones({2}));
  const auto own = model_state(*make_gpt(2));
  EXPECT_ERROR(load_into(own, adapt_foreign(foreign, own, "file"), "file"), ErrorKind::usage,
               "[checkpoint] the tensors of file do not fit the model; got missing "
               "`transformer.h.0.ln_1.bias`; unexpected `transformer.h.0.ln_1.beta`, "
               "`classifier.bias`");
}

TEST_F(ForeignWeights, OldBatchNormsAndAuxiliaryClassifiers) {
  const auto model = nn::make_model({.name = "resnet18"});
  const auto own = model_state(*model);
  NamedTensors old;
  for (const auto& item : own) {
    if (!item.first.ends_with("num_batches_tracked")) old.push_back(item);
  }
  ASSERT_LT(old.size(), own.size());
  old.emplace_back("AuxLogits.fc.weight", at::ones({2}));
  EXPECT_NO_THROW(load_into(own, adapt_foreign(old, own, "file"), "file"));
}

}  // namespace
}  // namespace troika::checkpoint
