// One rank of the configurations of bench/predictions and bench/pipedream_table whose passes only
// wait, on command.
//
// predictions_rank PLAN PROFILE, with the variables of torchrun. PLAN is the file of a plan with
// the mesh, the schedule and the micro-batches, PROFILE a profile with a block for each stage. The
// passes of a block wait for its times, its output has its bytes for each micro-batch, and so has
// its parameter. Reads commands (rank_commands.h): "profile N" runs the passes of the rank's
// stage N times without messages, and answers with the seconds of each forward and each backward
// pass, under "forward 0", "backward 0", "forward 1" and so on; "step N" answers with the seconds
// of each step, of a plan without flushes of N steps between two drains.
#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/rank_commands.h"
#include "bench/wait_model.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/layout/plan.h"
#include "troika/layout/profile.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/split_batch.h"

namespace {

using Seconds = std::chrono::duration<double>;

int64_t elements_of(double bytes) {
  return std::max<int64_t>(1, static_cast<int64_t>(bytes) / 4);
}

troika::BlockWaits waits_of(const troika::layout::ProfiledBlock& block) {
  return {Seconds(block.forward), Seconds(block.backward_input), Seconds(block.backward_weight),
          elements_of(block.output_bytes)};
}

// Passes of `stage` alone, so that ranks take the processors from each other as in a step.
nlohmann::json profile(const troika::layout::Profile& blocks, size_t stage, int times) {
  nlohmann::json answer;
  const auto input = at::ones({1, 1}).requires_grad_();
  for (size_t b = 0; b < blocks.blocks.size(); ++b) {
    for (const auto* pass : {"forward", "backward"}) {
      answer[fmt::format("{} {}", pass, b)] = nlohmann::json::array();
    }
    if (b != stage) continue;
    const auto waits = waits_of(blocks.blocks[b]);
    const auto weight = at::ones({elements_of(blocks.blocks[b].parameter_bytes)}).requires_grad_();
    for (int i = 0; i < times; ++i) {
      troika::Stopwatch watch;
      const auto output = troika::wait_with(waits, input, weight);
      answer[fmt::format("forward {}", b)].push_back(watch.seconds());
      watch.restart();
      output.sum().backward();
      answer[fmt::format("backward {}", b)].push_back(watch.seconds());
    }
  }
  return answer;
}

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor&) {
  return outputs.sum();
}

// Returns the mean seconds of `steps` steps from one drain to the next.
nlohmann::json seconds_without_flushes(troika::parallel::Pipeline& pipeline,
                                       const troika::comm::Group& world, int micro_batches,
                                       int steps) {
  const auto batch = at::ones({micro_batches * steps, 1});
  auto answer = troika::seconds_of_steps(world, 1, [&] {
    troika::parallel::SplitBatch source(batch, batch, micro_batches * steps, loss_of);
    for (int64_t left = micro_batches * steps; left > 0; left -= micro_batches) {
      pipeline.zero_grad();
      pipeline.advance(source, left);
      pipeline.step_by([] {});
    }
  });
  answer["step"][0] = answer["step"][0].get<double>() / steps;
  return answer;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    throw troika::Error("bench", troika::ErrorKind::usage,
                        {.what = "arguments of predictions_rank",
                         .got = std::to_string(argc - 1),
                         .expected = "PLAN PROFILE"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world({.backend = "tcp"});
  const auto plan = troika::layout::Plan::parse(troika::read_file(argv[1]), argv[1], world.size());
  const auto blocks = troika::layout::Profile::parse(troika::read_file(argv[2]), argv[2]);
  const auto m = static_cast<int>(plan.micro_batches);
  std::vector<troika::BlockWaits> waits;
  std::vector<int64_t> elements;
  for (const auto& block : blocks.blocks) {
    waits.push_back(waits_of(block));
    elements.push_back(elements_of(block.parameter_bytes));
  }
  troika::parallel::PipelineOptions options{.schedule = plan.schedule, .micro_batches = m};
  if (plan.is_asynchronous()) {
    options.schedule = troika::layout::kAsynchronousOrder;
    options.weights = plan.weights();
    options.in_flight = static_cast<int>(plan.without_flushes.in_flight);
    options.warm_up_by = troika::layout::warm_up_of(plan.without_flushes.warm_up);
  }
  troika::parallel::Pipeline pipeline(troika::make_wait_model(waits, elements), {world, plan.mesh},
                                      options);
  const auto batch = at::ones({m, 1});
  const auto stage =
      static_cast<size_t>(plan.mesh.coordinates(world.rank())[troika::layout::Axis::pipeline]);
  troika::answer_commands({{"profile", [&](int times) { return profile(blocks, stage, times); }},
                           {"step", [&](int times) {
                              if (plan.is_asynchronous())
                                return seconds_without_flushes(pipeline, world, m, times);
                              return troika::seconds_of_steps(world, times, [&] {
                                pipeline.zero_grad();
                                pipeline.run(batch, batch, loss_of);
                              });
                            }}});
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
