// Models that cannot be cut by tokens over a context axis.
#include "troika/parallel/context/context_table.h"

#include <gmock/gmock.h>

#include "tests/parallel/tensor_models.h"
#include "tests/support/errors.h"
#include "troika/parallel/context/context_parallel.h"
#include "troika/parallel/context/head_attention.h"

namespace troika::parallel::tensor_test {
namespace {

using layout::ContextMethod;

TEST(ContextTable, RefusesModelsWithoutTokens) {
  const auto refused = [](const nn::ModelOptions& options, const std::string& got,
                          const std::string& expected) {
    EXPECT_ERROR(
        require_context(*nn::make_model(options), split_table(options), 2, ContextMethod::ring),
        ErrorKind::usage,
        "[parallel] the model cannot be cut by tokens over a context axis; got " + got +
            ", expected " + expected);
  };
  refused(mlp(1, 0), "block layers.0, and no nn::Embedding of tokens",
          "a language model, as gpt or llama");
  refused(images("resnet20", 8), "module conv1",
          "linear layers, embeddings, norms and nn::Dropout");
  const auto options = language("gpt", 0, true);
  EXPECT_ERROR(require_context(*nn::make_model(options), {}, 2, ContextMethod::ring),
               ErrorKind::usage,
               "[parallel] block embed cannot be cut over the context axis; got no rule for "
               "transformer.wte, expected a rule in the table for each module with parameters or "
               "dropout");
}

TEST(ContextTable, RefusesAttentionThatItWouldNotUse) {
  const auto require = [](const std::string& attention, double dropout, ContextMethod method) {
    auto options = language("gpt", dropout, true);
    options.attn_implementation = attention;
    require_context(*nn::make_model(options), split_table(options), 2, method);
  };
  for (const std::string attention : {"eager", "sdpa"}) {
    EXPECT_ERROR(require(attention, 0, ContextMethod::ring), ErrorKind::usage,
                 "[parallel] context method ring computes attention by itself; got "
                 "model.attn_implementation " +
                     attention + ", expected auto, or the method all_to_all");
    require(attention, 0, ContextMethod::all_to_all);
  }
  require("eager", 0.3, ContextMethod::all_to_all);
  EXPECT_ERROR(require("sdpa", 0.3, ContextMethod::all_to_all), ErrorKind::usage,
               "[parallel] dropout of attention over a context axis is keyed; got "
               "model.attn_implementation sdpa, expected auto or eager");
}

TEST(ContextTable, RefusesDropoutWithoutKeys) {
  const auto options = language("gpt", 0, true);
  const auto model = nn::make_model(options);
  model->register_module("unkeyed", std::make_shared<torch::nn::DropoutImpl>(0.5));
  EXPECT_ERROR(require_context(*model, split_table(options), 2, ContextMethod::ring),
               ErrorKind::usage,
               "[parallel] the model cannot be cut by tokens over a context axis; got module "
               "unkeyed, expected linear layers, embeddings, norms and nn::Dropout");
}

TEST(ContextTable, RefusesWhatDoesNotDivide) {
  const auto gpt = language("gpt", 0, true);
  const auto model = nn::make_model(gpt);
  const auto require = [&](int ranks, int tensor_ranks) {
    require_context(*model, split_table(gpt), ranks, ContextMethod::all_to_all, tensor_ranks);
  };
  require(4, 1);
  require(2, 2);
  EXPECT_ERROR(require(3, 1), ErrorKind::usage,
               "[parallel] transformer.h.0.attn.c_attn cannot be cut by heads over the context "
               "axis; got 4 heads, 3 ranks, expected a multiple of 3 heads (method ring takes any "
               "number of heads)");
  EXPECT_ERROR(require(4, 2), ErrorKind::usage,
               "[parallel] transformer.h.0.attn.c_attn cannot be cut by heads over the context "
               "axis; got 2 heads, 4 ranks, expected a multiple of 4 heads (method ring takes any "
               "number of heads)");
  EXPECT_ERROR(require_divisible_heads("attention", 12, 6, 4), ErrorKind::usage,
               "[parallel] attention cannot be cut by heads over the context axis; got 6 heads of "
               "keys and values, 4 ranks, expected a multiple or a divisor of 4 (method ring takes "
               "any number of heads)");
  EXPECT_ERROR(require_divisible_context(at::zeros({1, 10}, at::kLong), 2), ErrorKind::usage,
               "[parallel] the tokens cannot be cut over the context axis; got 10 tokens, 2 ranks, "
               "expected a multiple of 4 tokens, two chunks for each rank (change data.context or "
               "mesh.context)");
}

}  // namespace
}  // namespace troika::parallel::tensor_test
