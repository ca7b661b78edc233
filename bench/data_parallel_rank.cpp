// One rank of bench/data_parallel, gpu, outside_operators, precision and zero: training steps of
// one model, on command.
//
// data_parallel_rank MODEL PRECISION EXCHANGE [operator-time | gpu], with torchrun's variables.
// MODEL is resnet18, vgg16 (both with CIFAR's 32x32 images, batch 32), resnet50 (the same with
// batch 16) or gpt (6 layers, width 384, context 256, batch 8), PRECISION 32 or bf16-mixed,
// EXCHANGE zero1, zero2, zero3, or the codec of data parallelism ("none" for no codec). Attention
// and the memory format of images are the ones that were timed to be fastest at the start; on a GPU
// they are those of the trainer. Reads commands from the standard input, one per line: "sync N"
// runs N steps of all ranks, "local N" runs N steps of this rank alone (not with ZeRO). Answers
// each command with a line of JSON: the seconds of every step, of its forward pass and of its
// optimizer, and with operator-time the processor seconds before the optimizer that are outside of
// operators (operator_time.h). With gpu, the model is on the first GPU, and a step ends when the
// GPU has ended it.
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>

#include "bench/operator_time.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/attention.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"
#include "troika/optim/optimizer.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/sharded.h"
#include "troika/train/tuning/tuning.h"

namespace {

using troika::ErrorKind;
using troika::nn::NumericPrecision;

struct Setup {
  troika::nn::ModelOptions model;
  troika::optim::OptimizerOptions optimizer;
  int64_t batch = 0;
};

Setup setup_of(const std::string& name) {
  const troika::optim::OptimizerOptions sgd{.name = "sgd", .lr = 0.01, .momentum = 0.9};
  if (name == "resnet18") return {{.name = "resnet18_cifar"}, sgd, 32};
  if (name == "resnet50") return {{.name = "resnet50_cifar"}, sgd, 16};
  if (name == "vgg16") return {{.name = "vgg16_cifar"}, sgd, 32};
  if (name == "gpt") return {{.name = "gpt"}, {.name = "adamw", .lr = 1e-4}, 8};
  throw troika::Error(
      "bench", ErrorKind::usage,
      {.what = "which model", .got = name, .expected = "resnet18, resnet50, vgg16 or gpt"});
}

// Chooses as a run of the trainer does, but without the file of earlier timings.
std::string fastest(const troika::comm::Group& group, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time) {
  const troika::train::TuningFile no_file({});
  return troika::train::fastest(group, no_file, {}, names, time).choice;
}

std::string attention_of(const Setup& setup, const NumericPrecision& precision,
                         const troika::comm::Group& group) {
  const auto candidates = troika::nn::available_attention();
  std::vector<std::string> names;
  for (const auto candidate : candidates) names.push_back(troika::nn::attention_name(candidate));
  const auto& model = setup.model;
  const troika::nn::AttentionShape shape{.batch = setup.batch,
                                         .heads = model.heads,
                                         .length = model.context,
                                         .size = model.width / model.heads,
                                         .type = precision.compute};
  return fastest(group, names, [&] { return troika::nn::time_attention(shape, candidates); });
}

at::MemoryFormat memory_format_of(const Setup& setup, const NumericPrecision& precision,
                                  const std::string& exchange, const troika::comm::Group& group) {
  const auto rule = troika::nn::parse_memory_format("auto", precision);
  if (setup.model.name == "gpt" || exchange.starts_with("zero")) return rule;
  const std::vector formats{at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast};
  std::vector<std::string> names;
  for (const auto format : formats) names.push_back(troika::nn::memory_format_name(format));
  const auto choice = fastest(group, names, [&] {
    return troika::nn::time_memory_formats(setup.model, setup.batch, precision, formats);
  });
  return troika::nn::parse_memory_format(choice, precision);
}

struct Seconds {
  double step = 0;
  double forward = 0;
  double optimizer = 0;
  double outside = 0;
};

class Training {
 public:
  Training(const Setup& setup, NumericPrecision precision, at::MemoryFormat format,
           const std::string& exchange, const troika::comm::Group& group, at::Device device)
      : precision_(std::move(precision)),
        model_(make_model(setup.model, format, device)),
        inputs_(make_inputs(setup, format).to(device)),
        exchange_(make_exchange(*model_, exchange, group)),
        optimizer_(troika::optim::make_optimizer(exchange_->parameters(), setup.optimizer)) {
    const bool is_text = setup.model.name == "gpt";
    targets_ = at::randint(is_text ? setup.model.vocab_size : setup.model.num_classes,
                           is_text ? inputs_.sizes() : at::IntArrayRef({setup.batch}),
                           inputs_.options().dtype(at::kLong));
  }

  Seconds step(bool synchronised) {
    const troika::Stopwatch whole;
    const double before = operator_time_outside();
    model_->zero_grad(/*set_to_none=*/true);
    const at::Tensor loss = forward();
    const double forward_seconds = whole.seconds();
    if (synchronised) {
      loss.backward();
      exchange_->finish_backward();
    } else {
      const auto guard = exchange_->no_sync();
      loss.backward();
    }
    const double outside = operator_time_outside() - before;
    const troika::Stopwatch update;
    if (synchronised) {
      exchange_->step(*optimizer_);
    } else {
      optimizer_->step();
    }
    if (!loss.is_cpu()) loss.item();
    return {whole.seconds(), forward_seconds, update.seconds(), outside};
  }

 private:
  static std::shared_ptr<troika::nn::Model> make_model(const troika::nn::ModelOptions& options,
                                                       at::MemoryFormat format, at::Device device) {
    auto model = troika::nn::make_model(options);
    model->to(device);
    troika::nn::lay_out(*model, format);
    return model;
  }

  static at::Tensor make_inputs(const Setup& setup, at::MemoryFormat format) {
    const auto inputs = troika::nn::example_input(setup.model, setup.batch);
    return inputs.dim() == 4 ? inputs.contiguous(format) : inputs;
  }

  static std::unique_ptr<troika::parallel::Exchange> make_exchange(
      troika::nn::Model& model, const std::string& name, const troika::comm::Group& group) {
    using troika::parallel::Sharded, troika::parallel::DataParallel;
    for (int stage = 1; stage <= 3; ++stage) {
      if (name != "zero" + std::to_string(stage)) continue;
      return std::make_unique<Sharded>(model, group,
                                       troika::parallel::ShardedOptions{.stage = stage});
    }
    return std::make_unique<DataParallel>(
        model, group, troika::parallel::DataParallelOptions{.codec = {.name = name}});
  }

  at::Tensor forward() {
    const troika::nn::Autocast autocast(precision_, inputs_.device().type());
    // As train::Task asks for the loss.
    if (model_->has_output_layer()) {
      return troika::nn::only(model_->forward(
          {inputs_}, std::make_shared<troika::nn::OutputLoss>(troika::nn::OutputLoss{targets_})));
    }
    return at::cross_entropy_loss(model_->forward(inputs_).flatten(0, -2), targets_.flatten());
  }

  const NumericPrecision precision_;
  const std::shared_ptr<troika::nn::Model> model_;
  const at::Tensor inputs_;
  at::Tensor targets_;
  const std::unique_ptr<troika::parallel::Exchange> exchange_;
  const std::unique_ptr<troika::optim::FlatOptimizer> optimizer_;
};

void serve(Training& training, bool times_operators) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string mode;
    int steps = 0;
    words >> mode >> steps;
    nlohmann::json seconds = {{"step", {}}, {"forward", {}}, {"optimizer", {}}};
    if (times_operators) seconds["outside"] = nlohmann::json::array();
    for (int i = 0; i < steps; ++i) {
      const Seconds one = training.step(mode == "sync");
      seconds["step"].push_back(one.step);
      seconds["forward"].push_back(one.forward);
      seconds["optimizer"].push_back(one.optimizer);
      if (times_operators) seconds["outside"].push_back(one.outside);
    }
    std::cout << seconds << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const bool times_operators = argc == 5 && argv[4] == std::string("operator-time");
  const bool on_gpu = argc == 5 && argv[4] == std::string("gpu");
  if (argc != 4 && !times_operators && !on_gpu) {
    throw troika::Error("bench", ErrorKind::usage,
                        {.what = "arguments of data_parallel_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "MODEL PRECISION EXCHANGE [operator-time | gpu]"});
  }
  at::set_num_threads(1);
  const auto group = troika::comm::world();
  torch::manual_seed(group.rank());
  troika::compat::keep_freed_memory();
  auto setup = setup_of(argv[1]);
  const auto precision = troika::nn::parse_precision(argv[2]);
  if (setup.model.name == "gpt") {
    setup.model.attn_implementation = on_gpu ? "sdpa" : attention_of(setup, precision, group);
  }
  const auto format = on_gpu ? troika::nn::parse_memory_format("auto", precision)
                             : memory_format_of(setup, precision, argv[3], group);
  const at::Device device(on_gpu ? at::kCUDA : at::kCPU);
  Training training(setup, precision, format, argv[3], group, device);
  if (times_operators) operator_time_start();
  serve(training, times_operators);
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
