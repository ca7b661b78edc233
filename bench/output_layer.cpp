// Measures the loss of a language model from the inputs of its output layer, forward and backward:
// computed by parts of the logits, against whole logits, taking turns in one thread. Prints a
// record: milliseconds, and the peak of tensor bytes without the inputs.
//
// bench_output_layer [REPEATS [ROWS [WIDTH]]]
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/base/clock.h"
#include "troika/base/memory.h"
#include "troika/compat/autocast.h"
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/nn/linear_cross_entropy.h"

namespace {

constexpr int64_t kIgnored = -100;
constexpr double kMegabyte = 1e6;

at::Tensor whole(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  const at::Tensor logits = at::linear(hidden, weight);
  return at::cross_entropy_loss(logits.to(at::kFloat), targets, {}, at::Reduction::Mean, kIgnored);
}

at::Tensor by_parts(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  return troika::nn::linear_cross_entropy(hidden, weight, targets, kIgnored);
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::stoi(argv[1]) : 7;
  const int64_t rows = argc > 2 ? std::stoll(argv[2]) : 2048;
  const int64_t width = argc > 3 ? std::stoll(argv[3]) : 384;
  at::set_num_threads(1);
  troika::compat::keep_freed_memory();
  troika::compat::count_tensor_memory();
  torch::manual_seed(1);
  const std::map<std::string, std::function<decltype(whole)>> methods{{"whole", whole},
                                                                      {"by parts", by_parts}};
  troika::BenchmarkRecord record("output_layer", {{"libtorch", troika::compat::torch_version()}});
  for (const int64_t classes : {256, 50257}) {
    for (const bool is_mixed : {false, true}) {
      const auto hidden = at::randn({rows, width}).set_requires_grad(true);
      const auto weight = at::randn({classes, width}).mul_(0.02).set_requires_grad(true);
      const auto targets = at::randint(classes, {rows}, at::kLong);
      std::map<std::string, std::vector<double>> times, memory, ratios;
      for (int i = 0; i <= repeats; ++i) {
        std::map<std::string, double> now;
        for (const auto& [name, way] : methods) {
          const int64_t before = troika::memory::live();
          troika::memory::restart_peak();
          const troika::Stopwatch watch;
          {
            const troika::compat::AutocastGuard autocast(at::kCPU, {is_mixed, at::kBFloat16});
            torch::autograd::grad({way(hidden, weight, targets)}, {hidden, weight});
          }
          now[name] = watch.seconds();
          if (i == 0) continue;
          times[name].push_back(1e3 * now[name]);
          memory[name].push_back(static_cast<double>(troika::memory::peak() - before) / kMegabyte);
        }
        if (i > 0) ratios["by parts"].push_back(now["by parts"] / now["whole"]);
      }
      const auto what = std::to_string(classes) + (is_mixed ? " bf16-mixed" : " 32");
      for (const auto& [name, way] : methods) {
        record.add(what + " " + name, "ms", troika::Better::lower, times[name]);
        record.add(what + " " + name + " memory", "MB", troika::Better::lower, memory[name]);
      }
      record.add(what + " by parts to whole", "ratio", troika::Better::lower, ratios["by parts"]);
    }
  }
  std::cout << record.to_json();
}
