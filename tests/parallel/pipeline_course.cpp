#include "tests/parallel/pipeline_course.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/parallel/waves.h"
#include "troika/compat/torch.h"
#include "troika/nn/keyed_draws.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/norm.h"

namespace troika::parallel {

namespace {

// Three numbers pass each block: the main one, one that only the last block takes, and integers.
std::shared_ptr<nn::Model> model_with_skips() {
  auto model = std::make_shared<nn::Model>();
  auto embedding = model->place("embedding", torch::nn::Embedding(11, 6));
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 6; ++i) {
    layers.push_back(torch::nn::Linear(6, 6));
    model->place("layer." + std::to_string(i), layers.back());
  }
  model->add_block({"embedding",
                    {"embedding"},
                    {},
                    [=](const nn::Tensors& in) mutable {
                      const auto x = embedding->forward(in[0]);
                      return nn::Tensors{x, at::tanh(x), in[0].remainder(2)};
                    },
                    {"x"},
                    {"x", "early", "odd"}});
  for (int i = 0; i < 6; ++i) {
    auto layer = layers[static_cast<size_t>(i)];
    if (i == 3) {  // takes what the first block gave, and gives a skip of its own
      model->add_block({"layer." + std::to_string(i),
                        {"layer." + std::to_string(i)},
                        {},
                        [=](const nn::Tensors& in) mutable {
                          const auto x = at::tanh(layer->forward(in[0] + 0.3 * in[1]));
                          return nn::Tensors{x, x * x};
                        },
                        {"x", "early"},
                        {"x", "middle"}});
      continue;
    }
    model->add_block({"layer." + std::to_string(i),
                      {"layer." + std::to_string(i)},
                      {},
                      [=](const at::Tensor& x) mutable { return at::tanh(layer->forward(x)); }});
  }
  model->add_block({"head",
                    {},
                    {"embedding.weight"},
                    [=](const nn::Tensors& in) {
                      const auto x = in[0] + in[1] * in[2] + in[3].unsqueeze(-1);
                      return at::matmul(x, embedding->weight.t());
                    },
                    {"x", "early", "middle", "odd"}});
  return model;
}

}  // namespace

PipelineCase pipeline_case(const std::string& name, int64_t samples, int seed) {
  PipelineCase result;
  const auto rows = at::arange(samples, at::kLong).unsqueeze(1);
  const auto tokens = [&](int64_t length, int64_t classes) {
    return (rows * 7 + at::arange(length, at::kLong) * 3 + seed).remainder(classes);
  };
  if (name == "skips") {
    result.model = model_with_skips();
    result.inputs = tokens(4, 11);
    result.targets = tokens(4, 11).roll(1, 1);
  } else if (name.starts_with("gpt")) {
    result.model = nn::make_model({.name = "gpt",
                                   .dropout = name == "gpt with dropout" ? 0.3 : 0,
                                   .vocab_size = 13,
                                   .context = 5,
                                   .layers = 6,
                                   .heads = 2,
                                   .width = 8,
                                   .tie_word_embeddings = name != "gpt untied"});
    result.inputs = tokens(5, 13);
    result.targets = tokens(5, 13).roll(1, 1);
    // Samples ignore different numbers of targets.
    if (name == "gpt with ignored targets") {
      result.targets.masked_fill_(at::arange(5, at::kLong) < rows.remainder(4), -100);
    }
  } else if (name == "s2vt") {
    result.model = nn::make_model({.name = "s2vt",
                                   .hidden_width = 4,
                                   .feature_width = 3,
                                   .frames = 3,
                                   .lstm_layers = 3,
                                   .vocab_size = 7,
                                   .context = 4,
                                   .width = 5});
    result.inputs = waves({samples, 3, 3}, 0.7, seed);
    result.captions = tokens(4, 7);
    result.targets = tokens(4, 7).roll(1, 1);
  } else if (name == "unet") {
    result.model = nn::make_model({.name = "unet",
                                   .num_classes = 3,
                                   .image_size = 8,
                                   .depth = 2,
                                   .convolutions = 2,
                                   .base_width = 2});
    result.inputs = waves({samples, 3, 8, 8}, 0.7, seed);
    result.targets = (rows + at::arange(64, at::kLong)).remainder(3).view({samples, 8, 8});
  } else if (name.starts_with("resnet20")) {
    result.model = nn::make_model({.name = "resnet20", .num_classes = 5, .image_size = 8});
    result.inputs = waves({samples, 3, 8, 8}, 0.7, seed);
    result.targets = rows.squeeze(1).remainder(5);
  } else {
    result.model = nn::make_model(
        {.name = "mlp", .num_classes = 5, .image_size = 4, .hidden_layers = 6, .hidden_width = 6});
    result.inputs = waves({samples, 3, 4, 4}, 0.7, seed);
    result.targets = rows.squeeze(1).remainder(5);
  }
  result.model->to(at::kDouble);
  if (name == "resnet20") result.model->eval();
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : result.model->parameters()) {
    const double scale = parameter.dim() > 1
                             ? 1.5 / std::sqrt(static_cast<double>(parameter.numel()) /
                                               static_cast<double>(parameter.size(0)))
                             : 0.5;
    parameter.copy_(waves(parameter.sizes(), 0.9, phase += 1) * scale);
  }
  result.loss = [](const at::Tensor& outputs, const at::Tensor& targets) {
    return at::cross_entropy_loss(outputs.flatten(0, -2), targets.flatten());
  };
  return result;
}

PipelineCase pipeline_case_alone(const std::string& name, int64_t samples, int seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return pipeline_case(name, samples, seed);
}

CaseBatches::CaseBatches(const PipelineCase& of, int micro_batches)
    : inputs_(of.inputs.tensor_split(micro_batches)),
      targets_(of.targets.tensor_split(micro_batches)),
      loss_(of.loss) {
  if (of.captions.defined()) captions_ = of.captions.tensor_split(micro_batches);
  int64_t next = of.first_sample;
  for (const auto& part : inputs_) {
    nn::SampleKeys keys{.seed = 5, .samples = {}};
    for (int64_t i = 0; i < part.size(0); ++i) keys.samples.push_back(next++);
    keys_.push_back(std::make_shared<const nn::SampleKeys>(std::move(keys)));
  }
}

nn::Tensors CaseBatches::inputs(int micro_batch) {
  const auto i = static_cast<size_t>(micro_batch);
  if (captions_.empty()) return {inputs_.at(i)};
  return {inputs_.at(i), captions_.at(i)};
}

at::Tensor CaseBatches::loss(int micro_batch, nn::Tensors outputs) {
  return loss_(nn::only(std::move(outputs)), targets_.at(static_cast<size_t>(micro_batch)));
}

at::Tensor CaseBatches::root(int micro_batch, const at::Tensor& loss) {
  return loss * weight(micro_batch);
}

std::shared_ptr<const nn::SampleKeys> CaseBatches::keys(int micro_batch) {
  return keys_.at(static_cast<size_t>(micro_batch));
}

double CaseBatches::weight(int micro_batch) const {
  const auto count = [](const at::Tensor& targets) { return (targets >= 0).sum().item<double>(); };
  double all = 0;
  for (const auto& targets : targets_) all += count(targets);
  return count(targets_.at(static_cast<size_t>(micro_batch))) / all;
}

PipelineResult accumulate(const PipelineCase& of, int micro_batches) {
  PipelineResult result;
  of.model->zero_grad();
  CaseBatches batches(of, micro_batches);
  for (int i = 0; i < micro_batches; ++i) {
    const nn::KeyedDraws draws(batches.keys(i));
    const auto loss = batches.loss(i, of.model->forward(batches.inputs(i)));
    batches.root(i, loss).backward();
    result.loss += batches.weight(i) * loss.item<double>();
  }
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : nn::trained_parameters(*of.model)) {
    all.push_back(parameter.grad().clone());
    result.gradients[name] = all.back();
  }
  result.norm = std::sqrt(sum_of_squares(all));
  return result;
}

void expect_oracle(const comm::Group& world, const std::string& mesh, const std::string& model,
                   int64_t samples, const PipelineOptions& options) {
  SCOPED_TRACE(options.schedule + ", " + mesh + ", " + model + ", cut " + options.cut + ", " +
               std::to_string(options.micro_batches) + " micro-batches");
  const comm::MeshGroups groups(world, layout::Mesh::parse(mesh, world.size()));
  auto own = pipeline_case_alone(model, samples);
  // Replicas with batches of their own: the oracle has the batches of all.
  const bool shares = groups.mesh().has_uneven_stages();
  const int replicas = shares ? 1 : groups.data().size();
  const auto all = pipeline_case_alone(model, samples * replicas);
  const auto oracle = accumulate(all, options.micro_batches * replicas);
  if (!shares) {
    const auto replica = groups.data().rank();
    const auto part_of = [&](const at::Tensor& whole) {
      return whole.defined() ? whole.tensor_split(replicas)[static_cast<size_t>(replica)] : whole;
    };
    own.inputs = part_of(all.inputs);
    own.targets = part_of(all.targets);
    own.captions = part_of(all.captions);
    own.first_sample = replica * samples;
  }

  Pipeline pipeline(own.model, groups, options);
  CaseBatches batches(own, options.micro_batches);
  for (int step = 0; step < 2; ++step) {  // edges and buckets are used again
    pipeline.zero_grad();
    const auto losses = pipeline.run(batches);
    const auto loss = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < losses.size(); ++i) {
      if (losses[i].defined()) loss.add_(losses[i], batches.weight(static_cast<int>(i)));
    }
    world.all_reduce(loss).wait();
    EXPECT_NEAR(loss.item<double>() / replicas, oracle.loss, 1e-10);
    for (const auto& parameter : pipeline.parameters()) {
      const auto& expected = oracle.gradients.at(parameter.name);
      ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
      EXPECT_LE((parameter.tensor.grad() - expected).abs().max().item<double>(),
                1e-10 * std::max(1.0, expected.abs().max().item<double>()))
          << parameter.name << " on rank " << world.rank();
    }
    EXPECT_NEAR(pipeline.clip_grad_norm(1e9), oracle.norm, 1e-10 * oracle.norm);
  }
}

}  // namespace troika::parallel
