#include <gmock/gmock.h>

#include <map>

#include "tests/support/errors.h"
#include "troika/compat/torch.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/zoo.h"

namespace troika::nn {
namespace {

ModelOptions small_s2vt() {
  return {.name = "s2vt",
          .hidden_width = 7,
          .feature_width = 5,
          .frames = 6,
          .lstm_layers = 2,
          .vocab_size = 11,
          .context = 4,
          .width = 6};
}

Tensors doubles(const ModelOptions& options, int64_t batch) {
  Tensors inputs = example_inputs(options, batch);
  inputs[0] = inputs[0].to(torch::kFloat64);
  return inputs;
}

// Embeddings of frames and words, an LSTM for each with PyTorch's two biases, and the output
// matrix.
TEST(S2vt, CountsAsTheOriginal) {
  const int64_t features = 4096, embedding = 500, hidden = 1000, words = 13'010;
  const auto model = make_model({.name = "s2vt",
                                 .hidden_width = hidden,
                                 .feature_width = features,
                                 .vocab_size = words,
                                 .context = 20,
                                 .width = embedding});
  EXPECT_EQ(parameter_count(*model), 37'579'500);
  EXPECT_EQ(parameter_count(*model),
            (features + 1) * embedding + 4 * hidden * (embedding + hidden + 2) + words * embedding +
                4 * hidden * (hidden + embedding + hidden + 2) + words * hidden);
}

torch::nn::LSTM torch_lstm(int64_t in, const ModelOptions& options) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(in, options.hidden_width)
                           .num_layers(options.lstm_layers)
                           .batch_first(true));
  lstm->to(torch::kFloat64);
  return lstm;
}

// Copies the layers of a stack into an LSTM of several layers.
void copy_lstm(torch::nn::LSTM& to, const std::map<std::string, at::Tensor>& state,
               const std::string& path) {
  torch::NoGradGuard no_grad;
  for (auto& entry : to->named_parameters()) {
    const auto split = entry.key().rfind("_l");
    const std::string layer = entry.key().substr(split + 2);
    entry.value().copy_(state.at(path + "." + layer + "." + entry.key().substr(0, split) + "_l0"));
  }
}

TEST(S2vt, EqualsTorchModules) {
  torch::manual_seed(31);
  const ModelOptions options = small_s2vt();
  const auto model = make_model(options);
  model->to(torch::kFloat64);
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, tensor] : named_state(*model)) state[name] = tensor;
  torch::nn::Linear frames(options.feature_width, options.width),
      head(torch::nn::LinearOptions(options.hidden_width, options.vocab_size).bias(false));
  torch::nn::Embedding words(options.vocab_size, options.width);
  auto first = torch_lstm(options.width, options);
  auto second = torch_lstm(options.hidden_width + options.width, options);
  copy_lstm(first, state, "frame_lstm");
  copy_lstm(second, state, "word_lstm");
  for (torch::nn::Module* module :
       std::initializer_list<torch::nn::Module*>{frames.get(), head.get(), words.get()}) {
    module->to(torch::kFloat64);
  }
  {
    torch::NoGradGuard no_grad;
    frames->weight.copy_(state.at("embed_frames.weight"));
    frames->bias.copy_(state.at("embed_frames.bias"));
    words->weight.copy_(state.at("embed_words.weight"));
    head->weight.copy_(state.at("head.weight"));
  }

  const Tensors inputs = doubles(options, 3);
  const int64_t steps = inputs[0].size(1), length = options.context;
  const auto zeros = [](int64_t count, int64_t width) {
    return torch::zeros({3, count, width}, torch::kFloat64);
  };
  // During the frames there are no words, and during the words no frames.
  const at::Tensor seen =
      std::get<0>(first(torch::cat({frames(inputs[0]), zeros(length, options.width)}, 1)));
  const at::Tensor said = torch::cat({zeros(steps, options.width), words(inputs[1])}, 1);
  const at::Tensor hidden = std::get<0>(second(torch::cat({seen, said}, 2)));
  const at::Tensor expected = head(hidden.narrow(1, steps, length));

  const at::Tensor found = only(model->forward(inputs));
  ASSERT_EQ(found.sizes(), (std::vector<int64_t>{3, length, options.vocab_size}));
  EXPECT_TRUE(at::allclose(found, expected, 1e-10, 1e-10));
  const at::Tensor gradient = torch::randn(found.sizes(), torch::kFloat64);
  found.backward(gradient);
  expected.backward(gradient);
  const auto expect_gradient = [&](const std::string& name, const at::Tensor& of) {
    EXPECT_TRUE(at::allclose(state.at(name).grad(), of.grad(), 1e-10, 1e-10)) << name;
  };
  expect_gradient("embed_frames.weight", frames->weight);
  expect_gradient("embed_words.weight", words->weight);
  expect_gradient("head.weight", head->weight);
  expect_gradient("frame_lstm.0.weight_hh_l0", first->named_parameters()["weight_hh_l0"]);
  expect_gradient("frame_lstm.1.bias_ih_l0", first->named_parameters()["bias_ih_l1"]);
  expect_gradient("word_lstm.0.weight_ih_l0", second->named_parameters()["weight_ih_l0"]);
}

TEST(S2vt, SeesAllFramesAndThePastOfTheCaption) {
  torch::manual_seed(32);
  const ModelOptions options = small_s2vt();
  const auto model = make_model(options);
  torch::NoGradGuard no_grad;
  const Tensors inputs = example_inputs(options, 2);
  const at::Tensor before = only(model->forward(inputs));
  for (int64_t t = 0; t < options.context; ++t) {
    const at::Tensor changed = inputs[1].clone();
    changed.select(1, t).add_(1).remainder_(options.vocab_size);
    const at::Tensor after = only(model->forward({inputs[0], changed}));
    EXPECT_TRUE(torch::equal(after.slice(1, 0, t), before.slice(1, 0, t))) << t;
    EXPECT_FALSE(torch::equal(after.select(1, t), before.select(1, t))) << t;
  }
  for (int64_t frame = 0; frame < options.frames; ++frame) {
    const at::Tensor changed = inputs[0].clone();
    changed.select(1, frame).add_(1);
    const at::Tensor after = only(model->forward({changed, inputs[1]}));
    EXPECT_FALSE(torch::equal(after.select(1, 0), before.select(1, 0))) << frame;
  }
}

TEST(S2vt, ReadsAnyNumberOfFrames) {
  const ModelOptions options = small_s2vt();
  const auto model = make_model(options);
  torch::NoGradGuard no_grad;
  const Tensors inputs = example_inputs(options, 2);
  for (const int64_t frames : {1, 9}) {
    EXPECT_EQ(only(model->forward({torch::randn({2, frames, 5}), inputs[1]})).sizes(),
              (std::vector<int64_t>{2, 4, 11}));
  }
}

TEST(S2vt, GivesTheLossOfItsLogits) {
  torch::manual_seed(33);
  const ModelOptions options = small_s2vt();
  const auto model = make_model(options);
  model->to(torch::kFloat64);
  const Tensors inputs = doubles(options, 2);
  const at::Tensor targets = torch::randint(11, {2, 4}, torch::kInt64);
  targets.select(1, 3).fill_(-100);
  ASSERT_TRUE(model->has_output_layer());
  const at::Tensor found =
      only(model->forward(inputs, std::make_shared<OutputLoss>(OutputLoss{targets})));
  const at::Tensor expected = torch::nn::functional::cross_entropy(
      only(model->forward(inputs)).flatten(0, 1), targets.flatten());
  EXPECT_NEAR(found.item<double>(), expected.item<double>(), 1e-12);
}

TEST(S2vt, RefusesBatchesOfAnotherShape) {
  const auto model = make_model(small_s2vt());
  const auto run = [&](const at::Tensor& frames, const at::Tensor& captions) {
    model->forward({frames, captions});
  };
  const at::Tensor frames = torch::zeros({2, 6, 5}), captions = torch::zeros({2, 4}, torch::kLong);
  EXPECT_ERROR(run(torch::zeros({2, 6, 4}), captions), ErrorKind::usage,
               "[nn] s2vt cannot read these frames; got Float of shape [2, 6, 4], expected "
               "[batch, frames, 5]");
  EXPECT_ERROR(run(frames, torch::zeros({2, 3}, torch::kLong)), ErrorKind::usage,
               "[nn] s2vt cannot read these captions; got Long of shape [2, 3], expected Long of "
               "shape [2, 4]");
  EXPECT_ERROR(run(frames, torch::zeros({2, 4})), ErrorKind::usage,
               "[nn] s2vt cannot read these captions; got Float of shape [2, 4], expected Long of "
               "shape [2, 4]");
}

}  // namespace
}  // namespace troika::nn
