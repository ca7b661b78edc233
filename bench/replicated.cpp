// Compares a plain step of one process with a step of parallel::Replicated on the same batch and
// number of threads. Prints a record (troika/base/benchmark_record.h); arguments are the model
// (default resnet20) and the replicas (default 2). LibTorch has the same number of threads in both
// cases: OMP_NUM_THREADS, or all cores.
//
// The target: a replicated step takes no longer than a plain one. The two take turns, so that other
// work on the machine affects both.
#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/compat/torch.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/replicated.h"

namespace {

using troika::parallel::ModuleReplica;

ModuleReplica make_replica(const troika::nn::ModelOptions& options) {
  const auto model = troika::nn::make_model(options);
  return {model, [model](const troika::data::Batch& batch) {
            return at::cross_entropy_loss(model->forward(batch.inputs), batch.targets);
          }};
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int64_t kBatch = 128;
  constexpr int kSteps = 15;
  const troika::nn::ModelOptions options{.name = argc > 1 ? argv[1] : "resnet20"};
  const int count = argc > 2 ? std::atoi(argv[2]) : 2;
  const auto plain = make_replica(options);
  std::vector<ModuleReplica> replicas;
  for (int i = 0; i < count; ++i) replicas.push_back(make_replica(options));
  troika::parallel::Replicated replicated(replicas);
  const auto inputs = troika::nn::example_input(options, kBatch);
  const auto targets = at::zeros({kBatch}, at::kLong);

  std::vector<double> plain_seconds, replicated_seconds;
  for (int step = 0; step < kSteps; ++step) {
    troika::Stopwatch watch;
    plain.module->zero_grad();
    plain.loss({inputs, targets}).backward();
    plain_seconds.push_back(watch.seconds());
    watch.restart();
    replicas[0].module->zero_grad();
    replicated.loss({inputs, targets}).backward();
    replicated_seconds.push_back(watch.seconds());
  }
  troika::BenchmarkRecord record("replicated", {{"libtorch", troika::compat::torch_version()}});
  const auto what = [&](const std::string& step) {
    return fmt::format("{} batch {} {} threads, {}", options.name, kBatch, at::get_num_threads(),
                       step);
  };
  using troika::Better;
  record.add(what("plain step"), "s", Better::lower, plain_seconds);
  record.add(what(fmt::format("step of {} replicas", count)), "s", Better::lower,
             replicated_seconds);
  std::cout << record.to_json();
}
