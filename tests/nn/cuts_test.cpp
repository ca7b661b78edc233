// Models that are cut into two parts: the tensors of Wiring::out_of() and Model::input_names() are
// all that the second part needs, in the forward and the backward pass.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

ModelOptions cut_model(const std::string& name) {
  return {.name = name,
          .num_classes = 5,
          .image_size = name == "alexnet" ? 63 : 32,
          .hidden_layers = 3,
          .hidden_width = 9,
          .depth = 3,
          .convolutions = 2,
          .base_width = 4,
          .feature_width = 5,
          .frames = 6,
          .lstm_layers = 2,
          .vocab_size = 11,
          .context = 4,
          .layers = 3,
          .heads = 2,
          .width = 8};
}

using Named = std::map<std::string, at::Tensor>;

Tensors chosen(const Model& model, const Slots& slots, const Named& known) {
  Tensors tensors;
  for (const auto& name : model.wiring().names(slots)) tensors.push_back(known.at(name));
  return tensors;
}

at::Tensor loss_of(const at::Tensor& logits) {
  return at::log_softmax(logits, -1).select(-1, 1).mean().neg();
}

std::vector<at::Tensor> gradients(Model& model) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : model.parameters()) {
    result.push_back(parameter.grad().defined() ? parameter.grad().clone()
                                                : at::zeros_like(parameter));
  }
  model.zero_grad(/*set_to_none=*/true);
  return result;
}

void expect_cuts_anywhere(const std::string& name) {
  torch::manual_seed(11);
  const ModelOptions options = cut_model(name);
  const auto model = make_model(options);
  model->to(torch::kFloat64);
  model->eval();  // statistics of batch norms stay
  Tensors inputs = example_inputs(options, 2);
  for (auto& input : inputs) {
    if (input.is_floating_point()) input = input.to(torch::kFloat64);
  }
  Named given;
  for (size_t i = 0; i < inputs.size(); ++i) given[model->input_names()[i]] = inputs[i];
  // The gradients of the largest model take half a gigabyte.
  const at::AutoGradMode with_gradients(name != "alexnet");
  const at::Tensor whole = only(model->forward(inputs));
  if (at::GradMode::is_enabled()) loss_of(whole).backward();
  const auto expected = at::GradMode::is_enabled() ? gradients(*model) : std::vector<at::Tensor>();

  const size_t all = model->blocks().size();
  for (size_t k = 1; k < all; ++k) {
    SCOPED_TRACE(k);
    const Tensors sent = model->forward(0, k, chosen(*model, model->wiring().into(0, k), given));
    const auto names = model->wiring().names(model->wiring().out_of(0, k));
    ASSERT_EQ(sent.size(), names.size());
    Named known = given;
    Tensors received;
    for (size_t i = 0; i < sent.size(); ++i) {
      received.push_back(sent[i].detach().requires_grad_());
      known[names[i]] = received.back();
    }
    const at::Tensor output =
        only(model->forward(k, all, chosen(*model, model->wiring().into(k, all), known)));
    EXPECT_TRUE(torch::equal(output, whole));
    if (!at::GradMode::is_enabled()) continue;
    loss_of(output).backward();
    Tensors returned;
    for (const auto& tensor : received) {
      ASSERT_TRUE(tensor.grad().defined()) << "a tensor that nobody needs was sent";
      returned.push_back(tensor.grad());
    }
    torch::autograd::backward(sent, returned);
    const auto found = gradients(*model);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-10, 1e-14)) << i;
    }
  }
}

TEST(Cuts, AnywhereGiveTheWholeModel) {
  for (const std::string name : {"mlp", "resnet20", "alexnet", "unet", "gpt", "s2vt"}) {
    SCOPED_TRACE(name);
    expect_cuts_anywhere(name);
  }
}

// The names that cross a cut, straight from the block that gives them to the one that takes them.
TEST(Cuts, CarryTheSkipsOfAUnet) {
  const auto model = make_model(cut_model("unet"));
  const auto crossing = [&](const std::string& block) {
    size_t end = 0;
    while (model->blocks()[end].name != block) ++end;
    return model->wiring().names(model->wiring().out_of(0, end + 1));
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(crossing("encoder.0.0"), (Names{"x"}));
  EXPECT_EQ(crossing("encoder.0.1"), (Names{"x", "skip.0"}));
  EXPECT_EQ(crossing("bottleneck.0"), (Names{"skip.0", "skip.1", "skip.2", "x"}));
  EXPECT_EQ(crossing("decoder.2.0"), (Names{"skip.0", "skip.1", "x"}));
  EXPECT_EQ(crossing("decoder.0.0"), (Names{"x"}));
}

TEST(Cuts, OfAnS2vtLeaveTheCaptionsToTheBlockThatTakesThem) {
  const auto model = make_model(cut_model("s2vt"));
  EXPECT_EQ(model->input_names(), (std::vector<std::string>{"x", "captions"}));
  const auto& wiring = model->wiring();
  using Names = std::vector<std::string>;
  EXPECT_EQ(wiring.names(wiring.into(0, 3)), (Names{"x"}));
  EXPECT_EQ(wiring.names(wiring.into(3, 4)), (Names{"x", "captions"}));
  EXPECT_EQ(wiring.names(wiring.out_of(0, 4)), (Names{"x"}));
}

}  // namespace
}  // namespace troika::nn
