// One rank of the configurations of bench/predictions whose passes only wait, on command.
//
// predictions_rank PLAN MILLISECONDS MESSAGE_BYTES PARAMETER_BYTES, with the variables of torchrun.
// PLAN is the file of a plan with the mesh, the schedule and the micro-batches. Every stage is a
// block: each of its three passes waits MILLISECONDS, its output has MESSAGE_BYTES for each
// micro-batch, and its parameter PARAMETER_BYTES. Reads commands from the standard input, one per
// line, and answers each with a line of JSON. "profile N" runs the block's passes N times without
// messages, and answers with the seconds of each forward and each backward pass; "step N" answers
// with the seconds of each step, on the rank where it took longest.
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "bench/wait_model.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/parallel/pipeline/pipeline.h"

namespace {

double number(const char* text) {
  const auto value = troika::parse_double(text);
  if (value && *value >= 0) return *value;
  throw troika::Error(
      "bench", troika::ErrorKind::usage,
      {.what = "an argument of predictions_rank", .got = text, .expected = "a number >= 0"});
}

nlohmann::json profile(const troika::BlockWaits& waits, const at::Tensor& weight, int times) {
  nlohmann::json answer{{"forward", nlohmann::json::array()},
                        {"backward", nlohmann::json::array()}};
  const auto input = at::ones({1}).requires_grad_();
  for (int i = 0; i < times; ++i) {
    troika::Stopwatch watch;
    const auto output = troika::wait_with(waits, input, weight);
    answer["forward"].push_back(watch.seconds());
    watch.restart();
    output.sum().backward();
    answer["backward"].push_back(watch.seconds());
  }
  return answer;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "arguments of predictions_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "PLAN MILLISECONDS MESSAGE_BYTES PARAMETER_BYTES"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world({.backend = "tcp"});
  const auto plan = troika::layout::Plan::parse(troika::read_file(argv[1]), argv[1], world.size());
  const std::chrono::duration<double, std::milli> pass(number(argv[2]));
  const int p = plan.mesh.size(troika::layout::Axis::pipeline);
  const auto m = static_cast<int>(plan.micro_batches);
  const troika::BlockWaits waits{pass, pass, pass};
  const auto elements = static_cast<int64_t>(number(argv[4])) / 4;
  const auto model = troika::make_wait_model(
      std::vector<troika::BlockWaits>(static_cast<size_t>(p), waits), elements);
  const auto weight = at::ones({elements}).requires_grad_();
  troika::parallel::Pipeline pipeline(model, {world, plan.mesh},
                                      {.schedule = plan.schedule, .micro_batches = m});
  const auto batch = at::ones({m, static_cast<int64_t>(number(argv[3])) / 4});
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int times = 0;
    words >> command >> times;
    if (command == "profile") {
      std::cout << profile(waits, weight, times) << std::endl;
      continue;
    }
    auto seconds = nlohmann::json::array();
    for (int i = 0; i < times; ++i) {
      pipeline.zero_grad();
      world.barrier();
      const troika::Stopwatch watch;
      pipeline.run(batch, batch, [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
      const auto took = at::full({1}, watch.seconds(), at::kDouble);
      world.all_reduce(took, troika::comm::ReduceOp::max).wait();
      seconds.push_back(took.item<double>());
    }
    std::cout << nlohmann::json{{"step", seconds}} << std::endl;
  }
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
