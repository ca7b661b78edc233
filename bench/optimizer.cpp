// Measures one step of each optimizer on ResNet-50's parameters (25.6 million, float32) in one
// thread, Troika's against LibTorch's of the same name. adamw_8bit, which LibTorch lacks, is
// compared with Troika's adamw, with this processor's instruction set and with the instructions
// that every x86-64 has. Prints a record (troika/base/benchmark_record.h): for each optimizer, the
// times of interleaved repeats, their ratios and the bytes of its states. Targets: LibTorch takes
// at least 2 times as long; adamw_8bit takes at most 3 times as long as adamw. `repeats` is the
// only argument (default 15).
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <utility>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/optim/kernels/kernels.h"
#include "troika/optim/optimizer.h"

namespace {

using troika::optim::OptimizerOptions;

std::vector<at::Tensor> make_parameters() {
  torch::manual_seed(1);
  const auto model = troika::nn::make_model({.name = "resnet50"});
  std::vector<at::Tensor> parameters;
  for (auto& item : troika::nn::trained_parameters(*model)) {
    item.second.mutable_grad() = at::randn_like(item.second) * 0.01;
    parameters.push_back(item.second);
  }
  return parameters;
}

double milliseconds(const std::function<void()>& work) {
  const troika::Stopwatch watch;
  work();
  return watch.seconds() * 1e3;
}

// Returns null if LibTorch has no optimizer of this name.
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

int64_t state_bytes(const troika::optim::FlatOptimizer& optimizer) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : optimizer.state()) bytes += tensor.nbytes();
  return static_cast<int64_t>(bytes);
}

// Two steps that take turns. `ratios` are the second step's times divided by the first step's.
struct Turns {
  std::vector<double> first, second, ratios;
};

Turns take_turns(int repeats, const std::function<void()>& first,
                 const std::function<void()>& second) {
  Turns turns;
  first();
  second();
  for (int i = 0; i < repeats; ++i) {
    turns.first.push_back(milliseconds(first));
    turns.second.push_back(milliseconds(second));
    turns.ratios.push_back(turns.second.back() / turns.first.back());
  }
  return turns;
}

void measure(troika::BenchmarkRecord& record, const OptimizerOptions& options, int repeats) {
  using troika::Better;
  const std::string& name = options.name;
  const auto ours = make_parameters(), others = make_parameters();
  const auto optimizer = troika::optim::make_optimizer(ours, options);
  record.add(name + " states", "B", Better::lower, {static_cast<double>(state_bytes(*optimizer))});
  const auto step = [&] { optimizer->step(); };
  if (const auto theirs = make_theirs(others, options)) {
    auto turns = take_turns(repeats, step, [&] { theirs->step(); });
    record.add(name + " step", "ms", Better::lower, std::move(turns.first));
    record.add(name + " LibTorch's step", "ms", Better::lower, std::move(turns.second));
    record.add(name + " LibTorch's step to ours", "ratio", Better::higher, std::move(turns.ratios));
  } else if (name == "adamw_8bit") {
    OptimizerOptions plain = options;
    plain.name = "adamw";
    const auto adamw = troika::optim::make_optimizer(others, plain);
    auto turns = take_turns(
        repeats, [&] { adamw->step(); }, step);
    record.add(name + " step", "ms", Better::lower, std::move(turns.second));
    record.add(name + " step to adamw's", "ratio", Better::lower, std::move(turns.ratios));
  } else {
    record.add(name + " step", "ms", Better::lower, take_turns(repeats, step, [] {}).first);
  }
}

// Measures only the kernels of both steps, on pieces that fit into a cache, as the optimizers do.
std::vector<double> measure_8bit_kernels(const troika::optim::kernels::Kernels& table,
                                         int repeats) {
  namespace kernels = troika::optim::kernels;
  constexpr int64_t kElements = 25'000'000, kPiece = 64 * kernels::kBlock;
  const auto numbers = at::zeros({4, kElements});
  const auto codes = at::zeros({2, kElements}, at::kByte);
  const auto largest = at::zeros({2, kElements / kernels::kBlock + 1});
  numbers[1].normal_().mul_(0.01);
  const kernels::Adam how{.beta1 = 0.9,
                          .beta2 = 0.999,
                          .step_size = 1e-3,
                          .inverse_root = 1,
                          .eps = 1e-8,
                          .weight_decay = 0,
                          .shrink = 1 - 1e-7};
  const auto row = [](const at::Tensor& table, int64_t i, int64_t begin) {
    return static_cast<char*>(table[i].data_ptr()) +
           begin * static_cast<int64_t>(table.element_size());
  };
  const auto in_pieces = [&](const auto& step) {
    for (int64_t begin = 0; begin < kElements; begin += kPiece) {
      step(begin, static_cast<size_t>(std::min(kPiece, kElements - begin)));
    }
  };
  const auto plain = [&](int64_t begin, size_t count) {
    table.adam(kernels::Type::f32,
               {row(numbers, 0, begin), row(numbers, 1, begin), row(numbers, 2, begin),
                row(numbers, 3, begin), count},
               how);
  };
  unsigned steps = 0;
  const auto coded = [&](int64_t begin, size_t count) {
    const auto level = [&](int64_t i) {
      return largest[i].data_ptr<float>() + begin / kernels::kBlock;
    };
    table.adam_8bit(
        kernels::Type::f32,
        {row(numbers, 0, begin), row(numbers, 1, begin), codes[0].data_ptr<uint8_t>() + begin,
         level(0), codes[1].data_ptr<uint8_t>() + begin, level(1), count, steps},
        how);
  };
  return take_turns(
             repeats, [&] { in_pieces(plain); },
             [&] {
               ++steps;
               in_pieces(coded);
             })
      .ratios;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  troika::BenchmarkRecord record("optimizer", {{"libtorch", troika::compat::torch_version()}});
  for (const auto& name : troika::optim::optimizer_names()) {
    measure(record, {.name = name, .lr = 1e-3, .weight_decay = 1e-4}, repeats);
  }
  namespace kernels = troika::optim::kernels;
  record.add("adamw_8bit to adamw, best kernels", "ratio", troika::Better::lower,
             measure_8bit_kernels(kernels::best(), repeats));
  record.add("adamw_8bit to adamw, kernels of every x86-64", "ratio", troika::Better::lower,
             measure_8bit_kernels(kernels::kBaseline, repeats));
  std::cout << record.to_json();
}
