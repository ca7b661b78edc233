// How long one step of each optimizer takes on ResNet-50's parameters (25.6 million, float32), ours
// and LibTorch's of the same name, in one thread. Prints one JSON object: per optimizer the medians
// of interleaved repeats in milliseconds, and the median of the repeats' ratios. The bar: a ratio
// of at least 2. `repeats` is the only argument (default 15).
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"

namespace {

using troika::optim::OptimizerOptions;

std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(1);
  const auto model = troika::nn::make_model({.name = "resnet50"});
  std::vector<at::Tensor> parameters;
  for (auto& item : troika::nn::trained_parameters(*model)) {
    item.tensor.mutable_grad() = at::randn_like(item.tensor) * 0.01;
    parameters.push_back(item.tensor);
  }
  return parameters;
}

double milliseconds(const std::function<void()>& work) {
  const troika::Stopwatch watch;
  work();
  return watch.seconds() * 1e3;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Null where LibTorch has no optimizer of the name.
std::unique_ptr<torch::optim::Optimizer> make_theirs(const std::vector<at::Tensor>& parameters,
                                                     const OptimizerOptions& options) {
  if (options.name == "sgd") {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(options.lr)
                                                               .momentum(options.momentum)
                                                               .weight_decay(options.weight_decay));
  }
  if (options.name == "adam") {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(options.lr).weight_decay(options.weight_decay));
  }
  if (options.name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  }
  if (options.name == "adagrad") {
    return std::make_unique<torch::optim::Adagrad>(
        parameters, torch::optim::AdagradOptions(options.lr).weight_decay(options.weight_decay));
  }
  return nullptr;
}

nlohmann::json measure(const OptimizerOptions& options, int repeats) {
  const auto ours = make_parameters(), theirs = make_parameters();
  const auto our_optimizer = troika::optim::make_optimizer(ours, options);
  const auto their_optimizer = make_theirs(theirs, options);
  our_optimizer->step();
  if (their_optimizer) their_optimizer->step();
  std::vector<double> our_times, their_times, ratios;
  for (int i = 0; i < repeats; ++i) {
    our_times.push_back(milliseconds([&] { our_optimizer->step(); }));
    if (!their_optimizer) continue;
    their_times.push_back(milliseconds([&] { their_optimizer->step(); }));
    ratios.push_back(their_times.back() / our_times.back());
  }
  nlohmann::json row{{"troika_milliseconds", median(our_times)}};
  if (their_optimizer) {
    row["libtorch_milliseconds"] = median(their_times);
    row["ratio"] = median(ratios);
  }
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  nlohmann::json result{{"torch", troika::compat::torch_version()}, {"repeats", repeats}};
  for (const auto& name : troika::optim::optimizer_names()) {
    result["optimizers"][name] = measure({.name = name, .lr = 1e-3, .weight_decay = 1e-4}, repeats);
  }
  std::cout << result.dump(2) << "\n";
}
