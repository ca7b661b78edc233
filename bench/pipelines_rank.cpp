// One rank of bench/pipelines: steps of one model, cut into two stages, on command.
//
// pipelines_rank MODEL CUT SCHEDULES, with the variables of torchrun. MODEL is gpt (6 layers, width
// 384, context 256, micro-batches of 2) or resnet50 (CIFAR's 32x32 images, micro-batches of 4), CUT
// a layout string, SCHEDULES names of schedules, joined by commas. Images have the memory format
// "auto". A step has 8 micro-batches and no optimizer. Reads commands from the standard input, one
// per line: "NAME N" runs N steps with the schedule NAME; "local N" runs N forward and backward
// passes of a micro-batch through the whole model on this rank alone. Answers each command with a
// line of JSON: the seconds of every step.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/memory_format.h"
#include "troika/nn/model.h"
#include "troika/nn/output_layer.h"
#include "troika/nn/precision.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/pipeline/pipeline.h"

namespace {

using troika::parallel::Pipeline;

constexpr int kMicroBatches = 8;

struct Setup {
  troika::nn::ModelOptions model;
  int64_t samples = 0;  // of a micro-batch
  at::MemoryFormat format =
      troika::nn::parse_memory_format("auto", troika::nn::parse_precision("32"));
};

std::shared_ptr<troika::nn::Model> make_model(const Setup& setup) {
  auto model = troika::nn::make_model(setup.model);
  troika::nn::lay_out(*model, setup.format);
  return model;
}

Setup setup_of(const std::string& name) {
  if (name == "gpt") return {{.name = "gpt"}, 2};
  if (name == "resnet50") return {{.name = "resnet50_cifar"}, 4};
  throw troika::Error("bench", troika::ErrorKind::usage,
                      {.what = "which model", .got = name, .expected = "gpt or resnet50"});
}

// Asks for losses in the same way as train::Task.
class Batches : public troika::parallel::MicroBatchSource {
 public:
  explicit Batches(const Setup& setup) {
    const bool is_text = setup.model.name == "gpt";
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto input = troika::nn::example_input(setup.model, setup.samples);
      inputs_.push_back(is_text ? input : input.contiguous(setup.format));
      targets_.push_back(at::randint(
          is_text ? setup.model.vocab_size : setup.model.num_classes,
          is_text ? inputs_.back().sizes() : at::IntArrayRef({setup.samples}), at::kLong));
    }
  }

  troika::nn::Tensors inputs(int micro_batch) override { return {inputs_.at(micro_batch)}; }
  std::shared_ptr<const troika::nn::OutputLoss> output_loss(int micro_batch) override {
    return std::make_shared<troika::nn::OutputLoss>(
        troika::nn::OutputLoss{targets_.at(micro_batch)});
  }
  at::Tensor loss(int micro_batch, troika::nn::Tensors outputs) override {
    auto output = troika::nn::only(std::move(outputs));
    if (output.numel() == 1) return output;
    return at::cross_entropy_loss(output, targets_.at(micro_batch));
  }
  at::Tensor root(int /*micro_batch*/, const at::Tensor& loss) override {
    return loss / kMicroBatches;
  }

 private:
  std::vector<at::Tensor> inputs_, targets_;
};

double step(Pipeline& pipeline, Batches& batches) {
  const troika::Stopwatch watch;
  pipeline.zero_grad();
  pipeline.run(batches);
  return watch.seconds();
}

double local_pass(troika::nn::Model& model, Batches& batches) {
  const troika::Stopwatch watch;
  model.zero_grad(/*set_to_none=*/true);
  auto outputs = model.has_output_layer() ? model.forward(batches.inputs(0), batches.output_loss(0))
                                          : model.forward(batches.inputs(0), nullptr);
  batches.root(0, batches.loss(0, std::move(outputs))).backward();
  return watch.seconds();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "arguments of pipelines_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "MODEL CUT SCHEDULES"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world();
  torch::manual_seed(0);
  troika::compat::keep_freed_memory();
  const auto setup = setup_of(argv[1]);
  const troika::comm::MeshGroups groups(
      world, troika::layout::Mesh(troika::layout::Axis::pipeline, world.size()));
  std::map<std::string, std::unique_ptr<Pipeline>> pipelines;  // each of a model of its own
  std::istringstream names(argv[3]);
  for (std::string name; std::getline(names, name, ',');) {
    pipelines[name] = std::make_unique<Pipeline>(
        make_model(setup), groups,
        troika::parallel::PipelineOptions{.schedule = name,
                                          .micro_batches = kMicroBatches,
                                          .cut = argv[2],
                                          .memory_format = setup.format});
  }
  const auto whole = make_model(setup);
  Batches batches(setup);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int steps = 0;
    words >> command >> steps;
    auto seconds = nlohmann::json::array();
    for (int i = 0; i < steps; ++i) {
      seconds.push_back(command == "local" ? local_pass(*whole, batches)
                                           : step(*pipelines.at(command), batches));
    }
    std::cout << nlohmann::json{{"step", seconds}} << std::endl;
  }
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
