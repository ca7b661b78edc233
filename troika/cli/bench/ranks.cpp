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
#include "troika/cluster/environment.h"

namespace troika::cli::bench {

namespace {

// A machine grows busier and quieter; in every round each variant has its turn, so all see the
// same of it.
constexpr int kRounds = 5;
constexpr int64_t kMinCalls = 2;  // in a round
constexpr int64_t kMaxCalls = 20'000;
constexpr double kWarmUpShare = 0.1;  // of the time of the measurement

// Calls the variant for as long as rank 0 finds right, and adds the seconds that each call took on
// this rank from the moment that all had come. All ranks call it equally often.
void run_round(const Variant& variant, Setup& setup, double budget, std::vector<double>& seconds) {
  variant.call();  // not timed: the caches are as another variant left them
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
  // Sums of sums would leave the range of the type.
  if (plan.operation == comm::Operation::all_reduce) variant.output.zero_();
}

// Each call's time on the rank where it took longest.
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
  // LibTorch's threads would go on spinning on the cores of other ranks.
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
