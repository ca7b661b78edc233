// One process on one batch: plainly, and by parallel::Replicated on as many threads. Prints one
// JSON object; arguments are the model (default resnet20) and the replicas (default 2). LibTorch
// has as many threads either way: OMP_NUM_THREADS, or all cores.
//
// The bar: a replicated step takes no longer than a plain one. The two take turns, so that both see
// the same machine.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

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

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
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
  std::cout << nlohmann::json{{"model", options.name},
                              {"batch", kBatch},
                              {"threads", at::get_num_threads()},
                              {"replicas", count},
                              {"plain_step_milliseconds", 1e3 * median(plain_seconds)},
                              {"replicated_step_milliseconds", 1e3 * median(replicated_seconds)}}
                   .dump(2)
            << "\n";
}
