// Compares the time of a pipeline's step with the formula of its schedule, and measures the share
// of time in which the stages of a pipeline without flushes are busy. The passes only wait, so the
// pipeline may have more ranks than this machine has cores.
//
//   bench_pipeline_waits [ROUNDS] [MILLISECONDS]     default: 5 rounds, 20 ms a pass of a chunk
//
// Ranks are threads. A step has 2 p micro-batches. Formulas with F, I and W of a chunk, T their
// sum:
//   gpipe, 1f1b   (m + p - 1) T
//   interleaved   2 m T + (p - 1) T                   with 2 chunks
//   zb-h1         m T + (p - 1) (F + I - W)
//   zb-v          2 m T + (p - 1) F                   2 chunks
// Without flushes (pipedream), a step has one micro-batch; 2 p steps are measured after the first
// 2 p, and a stage is busy for T in each of them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/wait_model.h"
#include "troika/base/benchmark_record.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/pipeline/split_batch.h"

namespace {

using Seconds = std::chrono::duration<double>;

Seconds g_pass;

std::shared_ptr<troika::nn::Model> make_model(int blocks) {
  return troika::make_wait_model(
      std::vector<troika::BlockWaits>(static_cast<size_t>(blocks), {g_pass, g_pass, g_pass}));
}

double formula(const std::string& schedule, double p, double m) {
  const double pass = g_pass.count(), all = 3 * pass;
  if (schedule == "interleaved") return 2 * m * all + (p - 1) * all;
  if (schedule == "zb-h1") return m * all + (p - 1) * pass;
  if (schedule == "zb-v") return 2 * m * all + (p - 1) * pass;
  return (m + p - 1) * all;
}

// Returns the seconds of each round, from the start of the step on the first rank to its end on the
// last one.
std::vector<double> measure(const std::string& schedule, int p, int chunks, int rounds) {
  std::vector<double> seconds;
  troika::comm::local::run(p, [&](troika::comm::Group world) {
    const troika::comm::MeshGroups groups(world,
                                          troika::layout::Mesh(troika::layout::Axis::pipeline, p));
    troika::parallel::Pipeline pipeline(make_model(p * chunks), groups,
                                        {.schedule = schedule, .micro_batches = 2 * p});
    const auto batch = at::ones({2 * p, 4});
    for (int round = -1; round < rounds; ++round) {  // the first one makes the edges
      world.barrier();
      const auto start = std::chrono::steady_clock::now();
      pipeline.run(batch, batch, [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
      const auto took =
          at::full({1}, Seconds(std::chrono::steady_clock::now() - start).count(), at::kDouble);
      world.all_reduce(took, troika::comm::ReduceOp::max).wait();
      if (round >= 0 && world.rank() == 0) seconds.push_back(took.item<double>());
    }
  });
  return seconds;
}

// Returns the share of busy time of the least busy stage, by round.
std::vector<double> measure_busy(int p, int rounds) {
  std::vector<double> shares;
  troika::comm::local::run(p, [&](troika::comm::Group world) {
    const troika::comm::MeshGroups groups(world,
                                          troika::layout::Mesh(troika::layout::Axis::pipeline, p));
    troika::parallel::Pipeline pipeline(make_model(p), groups,
                                        {.weights = troika::layout::StageWeights::stashed});
    const int filled = 2 * p, steps = 6 * p;
    for (int round = 0; round < rounds; ++round) {
      const auto batch = at::ones({steps, 4});
      troika::parallel::SplitBatch source(
          batch, batch, steps, [](const at::Tensor& x, const at::Tensor&) { return x.sum(); });
      world.barrier();
      std::chrono::steady_clock::time_point begin, end;
      for (int step = 0; step < steps; ++step) {
        if (step == filled) begin = std::chrono::steady_clock::now();
        pipeline.zero_grad();
        pipeline.advance(source, steps - step);
        pipeline.step_by([] {});
        if (step + 1 == 2 * filled) end = std::chrono::steady_clock::now();
      }
      const auto share =
          at::full({1}, filled * 3 * g_pass.count() / Seconds(end - begin).count(), at::kDouble);
      world.all_reduce(share, troika::comm::ReduceOp::min).wait();
      if (world.rank() == 0) shares.push_back(share.item<double>());
    }
  });
  return shares;
}

}  // namespace

int main(int argc, char** argv) try {
  at::set_num_threads(1);
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  g_pass = std::chrono::milliseconds(argc > 2 ? std::max(1, std::atoi(argv[2])) : 20);
  troika::BenchmarkRecord record("pipeline_waits", {{"libtorch", troika::compat::torch_version()}});
  const std::map<std::string, int> chunks{
      {"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}, {"zb-h1", 1}, {"zb-v", 2}};
  for (const int p : {4, 8}) {
    for (const auto& [schedule, of_rank] : chunks) {
      const double expected = formula(schedule, p, 2 * p);
      auto ratios = measure(schedule, p, of_rank, rounds);
      for (double& ratio : ratios) ratio /= expected;
      const auto spread = troika::spread_of(ratios);
      std::cerr << fmt::format("{:12} p = {}  {:.4f} [{:.4f}, {:.4f}] of {:.2f} s\n", schedule, p,
                               spread.median, spread.low, spread.high, expected);
      record.add(fmt::format("{} on {} ranks, time over formula", schedule, p), "1",
                 troika::Better::lower, ratios);
    }
    const auto shares = measure_busy(p, rounds);
    const auto spread = troika::spread_of(shares);
    std::cerr << fmt::format("{:12} p = {}  {:.4f} [{:.4f}, {:.4f}] busy\n", "pipedream", p,
                             spread.median, spread.low, spread.high);
    record.add(fmt::format("pipedream on {} ranks, busy share of the least busy stage", p), "1",
               troika::Better::higher, shares);
  }
  std::cout << record.to_json();
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << std::endl;
  return 1;
}
