#include <fmt/format.h>

#include "troika/base/error.h"
#include "troika/compat/torch.h"
#include "troika/nn/dropout.h"
#include "troika/nn/layers.h"
#include "troika/nn/linear.h"
#include "troika/nn/lstm.h"
#include "troika/nn/models.h"
#include "troika/nn/output_layer.h"

namespace troika::nn {

namespace {

constexpr const char* kCaptions = "captions";

void check_s2vt(const ModelOptions& options) {
  require_at_least(options, "feature_width", options.feature_width, 1);
  require_at_least(options, "vocab_size", options.vocab_size, 1);
  require_at_least(options, "context", options.context, 1);
  require_at_least(options, "width", options.width, 1);
  require_at_least(options, "hidden_width", options.hidden_width, 1);
  require_at_least(options, "lstm_layers", options.lstm_layers, 1);
}

[[noreturn]] void refuse(const char* what, const at::Tensor& input, std::string expected) {
  throw Error("nn", ErrorKind::usage,
              {.what = fmt::format("s2vt cannot read these {}", what),
               .got = fmt::format("{} of shape [{}]", c10::toString(input.scalar_type()),
                                  fmt::join(input.sizes(), ", ")),
               .expected = std::move(expected)});
}

void check_frames(const at::Tensor& frames, int64_t feature_width) {
  if (frames.dim() == 3 && frames.size(1) > 0 && frames.size(2) == feature_width) return;
  refuse("frames", frames, fmt::format("[batch, frames, {}]", feature_width));
}

void check_captions(const at::Tensor& captions, int64_t batch, int64_t context) {
  if (captions.dim() == 2 && captions.size(0) == batch && captions.size(1) == context &&
      captions.scalar_type() == at::kLong) {
    return;
  }
  refuse(kCaptions, captions, fmt::format("Long of shape [{}, {}]", batch, context));
}

// Pads dimension 1 (time) with `before` zero steps at the beginning and `after` zero steps at the
// end.
at::Tensor pad_steps(const at::Tensor& steps, int64_t before, int64_t after) {
  return at::constant_pad_nd(steps, {0, 0, before, after});
}

// Adds one block per layer: LSTM and dropout. Returns the width of the output.
int64_t add_lstms(Model& model, const ModelOptions& options, const std::string& path,
                  int64_t width) {
  for (int64_t i = 0; i < options.lstm_layers; ++i) {
    const std::string name = fmt::format("{}.{}", path, i);
    auto lstm = model.place(name, std::make_shared<Lstm>(width, options.hidden_width));
    auto dropout = model.place(fmt::format("{}_dropout.{}", path, i),
                               std::make_shared<Dropout>(options.dropout));
    model.add_block({name, {name}, {}, [=](const at::Tensor& input) {
                       return dropout->forward(lstm->forward(input));
                     }});
    width = options.hidden_width;
  }
  return width;
}

}  // namespace

std::shared_ptr<Model> make_s2vt(const ModelOptions& options) {
  check_s2vt(options);
  auto model = std::make_shared<Model>();
  const int64_t context = options.context;

  auto embed_frames =
      model->place("embed_frames", std::make_shared<Linear>(options.feature_width, options.width));
  auto drop_frames = model->place("drop_frames", std::make_shared<Dropout>(options.dropout));
  model->add_block({"frames",
                    {"embed_frames"},
                    {},
                    [=, feature_width = options.feature_width](const at::Tensor& frames) {
                      check_frames(frames, feature_width);
                      return pad_steps(drop_frames->forward(embed_frames->forward(frames)), 0,
                                       context);
                    }});
  const int64_t seen = add_lstms(*model, options, "frame_lstm", options.width);

  auto embed_words =
      model->place("embed_words", torch::nn::Embedding(options.vocab_size, options.width));
  auto drop_words = model->place("drop_words", std::make_shared<Dropout>(options.dropout));
  model->add_block({"words",
                    {"embed_words"},
                    {},
                    [=](const Tensors& inputs) {
                      const at::Tensor& frames = inputs[0];
                      check_captions(inputs[1], frames.size(0), context);
                      const at::Tensor words = drop_words->forward(embed_words->forward(inputs[1]));
                      return at::cat({frames, pad_steps(words, frames.size(1) - context, 0)}, 2);
                    },
                    {kPassing, kCaptions}});
  const int64_t written = add_lstms(*model, options, "word_lstm", seen + options.width);

  torch::nn::Linear head(torch::nn::LinearOptions(written, options.vocab_size).bias(false));
  model->place("head", head);
  model->add_block({"head", {"head"}, {}, [=](const at::Tensor& input, const OutputLayer& output) {
                      return output(input.slice(1, input.size(1) - context), head->weight);
                    }});
  return model;
}

}  // namespace troika::nn
