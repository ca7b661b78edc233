#include "troika/cli/bench/ranks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <iostream>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/file.h"
#include "troika/cli/bench/report.h"
#include "troika/cli/bench/variant.h"
#include "troika/cluster/discovery/environment.h"

namespace troika::cli::bench {

namespace {

// The load of a machine varies. Each round measures every variant, so all variants see the same
// load.
constexpr int kRounds = 5;
constexpr int64_t kMinCalls = 2;  // in a round
constexpr int64_t kMaxCalls = 20'000;
constexpr double kWarmUpShare = 0.1;  // of the time of the measurement

// Calls the variant until rank 0 decides to stop, and appends the seconds of each call on this rank
// from the moment when all ranks had arrived. All ranks make the same number of calls.
void run_round(const Variant& variant, Setup& setup, double budget, std::vector<double>& seconds) {
  variant.call();  // not timed: brings this variant's data into the caches
  const Stopwatch round;
  for (int64_t calls = 0;; ++calls) {
    const bool more = calls < kMinCalls || (calls < kMaxCalls && round.seconds() < budget);
    if (!setup.barrier().wait(more)) return;
    const Stopwatch watch;
    variant.call();
    seconds.push_back(watch.seconds());
  }
}

void verify(const Variant& variant, const Plan& plan, Setup& setup) {
  const int rank = setup.control().rank();
  fill(variant, plan, rank);
  variant.call();
  check(variant, plan, rank, setup.control().size());
  // Repeated sums would leave the range of the type.
  if (plan.operation == comm::Operation::all_reduce) variant.output.zero_();
}

// Returns the time of each call on its slowest rank.
std::vector<double> longest(std::vector<double> seconds, const comm::Group& control) {
  const at::Tensor all =
      at::from_blob(seconds.data(), {static_cast<int64_t>(seconds.size())}, at::kDouble);
  control.all_reduce(all, comm::ReduceOp::max).wait();
  return seconds;
}

std::vector<Row> measure(const Plan& plan, Setup& setup, int64_t bytes) {
  std::vector<Variant> variants = make_variants(plan, setup, bytes);
  std::vector<double> warm_up;
  for (const Variant& variant : variants) {
    verify(variant, plan, setup);
    run_round(variant, setup, kWarmUpShare * plan.min_seconds, warm_up);
  }
  std::vector<std::vector<double>> seconds(variants.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      run_round(variants[v], setup, plan.min_seconds / kRounds, seconds[v]);
    }
  }
  std::vector<Row> rows;
  for (size_t v = 0; v < variants.size(); ++v) {
    set_times(variants[v].row, plan.operation, longest(std::move(seconds[v]), setup.control()));
    rows.push_back(std::move(variants[v].row));
  }
  return rows;
}

}  // namespace

void measure_as_rank(const Plan& plan, const std::filesystem::path& rows_file) {
  // LibTorch's threads would keep spinning on the cores of other ranks.
  at::set_num_threads(1);
  const auto environment = cluster::discover();
  Setup setup(plan, environment);
  std::vector<Row> rows;
  for (const int64_t bytes : plan.sizes) {
    for (Row& row : measure(plan, setup, bytes)) {
      if (environment.rank == 0) std::cout << to_line(row) << std::flush;
      rows.push_back(std::move(row));
    }
  }
  if (environment.rank == 0) write_file_atomically(rows_file, to_text(rows));
}

}  // namespace troika::cli::bench
