// One rank of bench/pipeline_overlap: steps of a pipeline whose passes only wait, with messages of
// a chosen size, on command.
//
// pipeline_overlap_rank SCHEDULE MICRO_BATCHES MILLISECONDS BYTES LINK_MILLISECONDS BLOCKED
// IN_FLIGHT, with the variables of torchrun. Every rank has a stage; each of its three passes waits
// MILLISECONDS. A message has BYTES. Schedule `auto` is made for links that take LINK_MILLISECONDS
// for a message, and keeps up to two micro-batches for each rank. Schedule `pipedream` has no
// flushes, IN_FLIGHT micro-batches for each stage that follows, and steps of one micro-batch; a
// step of the command is then MICRO_BATCHES of them, between two drains. BLOCKED is 1 if ranks are
// to be busy while they send and receive: passes then wait for LINK_MILLISECONDS more for each
// message. Reads commands "step N" (rank_commands.h).
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "bench/rank_commands.h"
#include "bench/wait_model.h"
#include "troika/base/error.h"
#include "troika/comm/end_with.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/split_batch.h"
#include "troika/plan/automatic.h"

namespace {

using Milliseconds = std::chrono::duration<double, std::milli>;

// Runs MICRO_BATCHES from one drain to the next.
void run_segment(troika::parallel::Pipeline& pipeline, const at::Tensor& batch) {
  const auto micro_batches = static_cast<int>(batch.size(0));
  troika::parallel::SplitBatch source(
      batch, batch, micro_batches, [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
  for (int left = micro_batches; left > 0; --left) {
    pipeline.zero_grad();
    pipeline.advance(source, left);
    pipeline.step_by([] {});
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 8) {
    throw troika::Error(
        "bench", troika::ErrorKind::usage,
        {.what = "arguments of pipeline_overlap_rank",
         .got = std::to_string(argc - 1),
         .expected =
             "SCHEDULE MICRO_BATCHES MILLISECONDS BYTES LINK_MILLISECONDS BLOCKED IN_FLIGHT"});
  }
  at::set_num_threads(1);
  const auto world = troika::comm::world({.backend = "tcp"});
  const int p = world.size(), m = static_cast<int>(troika::number_of(argv[2]));
  const double pass = troika::number_of(argv[3]), link = troika::number_of(argv[5]);
  const auto elements = static_cast<int64_t>(troika::number_of(argv[4])) / 4;
  const bool is_blocked = troika::number_of(argv[6]) > 0;

  std::vector<troika::BlockWaits> waits;
  for (int s = 0; s < p; ++s) {
    const int messages = (s > 0) + (s + 1 < p);  // of a forward pass, and of a backward pass
    const Milliseconds busy(is_blocked ? messages * link : 0);
    waits.push_back({Milliseconds(pass) + busy, Milliseconds(pass) + busy, Milliseconds(pass)});
  }
  troika::parallel::PipelineOptions options{.schedule = argv[1], .micro_batches = m};
  if (options.schedule == troika::layout::kAutomaticSchedule) {
    options.actions =
        troika::plan::automatic_schedule(
            {.ranks = p, .micro_batches = m, .chunks = 1},
            {{.forward = pass, .backward_input = pass, .backward_weight = pass, .message = link}},
            2.0 * p, {})
            .text();
  }
  const auto weights = troika::layout::weights_of_schedule(options.schedule);
  const bool is_asynchronous = weights != troika::layout::StageWeights::synchronous;
  if (is_asynchronous) {
    options = {.schedule = troika::layout::kAsynchronousOrder,
               .weights = weights,
               .in_flight = static_cast<int>(troika::number_of(argv[7]))};
  }
  const troika::comm::MeshGroups groups(world,
                                        troika::layout::Mesh(troika::layout::Axis::pipeline, p));
  troika::parallel::Pipeline pipeline(troika::make_wait_model(waits), groups, options);
  const auto batch = at::ones({m, elements});
  troika::answer_commands({{"step", [&](int steps) {
                              return troika::seconds_of_steps(world, steps, [&] {
                                if (is_asynchronous) return run_segment(pipeline, batch);
                                pipeline.run(
                                    batch, batch,
                                    [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
                              });
                            }}});
} catch (const std::exception& error) {
  return troika::comm::end_with(error);
}
