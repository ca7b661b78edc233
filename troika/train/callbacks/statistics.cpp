#include "troika/train/callbacks/statistics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/parallel/norm.h"
#include "troika/parallel/parameter_store.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

namespace {

bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string block_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? parameter : parameter.substr(0, dot);
}

}  // namespace

StatisticsMonitor::StatisticsMonitor(const StatisticsOptions& options)
    : options_(options),
      of_gradients_(has(options.of, "gradients")),
      of_weights_(has(options.of, "weights")) {}

void StatisticsMonitor::on_fit_start(FitContext& context) {
  parameters_ = context.training.store->parameters();
  std::vector<std::string> own;  // one for each parameter
  for (const auto& parameter : parameters_) {
    own.push_back(options_.per == "total"   ? ""
                  : options_.per == "block" ? block_of(parameter.name)
                                            : parameter.name);
  }
  names_ = {""};
  // The stages of a pipeline have different parameters.
  const auto texts =
      context.group.all_gather_text(fmt::format("{}", fmt::join(own, "\n")), "names of statistics");
  for (const auto& text : texts) {
    for (const auto& name : split(text, '\n')) {
      if (!has(names_, name)) names_.push_back(name);
    }
  }
  groups_.clear();
  for (const auto& name : own) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    groups_.push_back(static_cast<size_t>(found - names_.begin()));
  }
}

void StatisticsMonitor::on_before_optimizer_step(FitContext& context) {
  if ((context.at.step + 1) % options_.every_n_steps != 0) return;
  std::vector<at::Tensor> tensors;
  if (of_gradients_) {
    for (const auto& parameter : parameters_) tensors.push_back(parameter.tensor.grad());
    log(context, "gradient", tensors, context.training.optimization->loss_scale().value_or(1));
    tensors.clear();
  }
  if (!of_weights_) return;
  for (const auto& parameter : context.training.optimization->parameters()) {
    tensors.push_back(parameter.tensor.detach());
  }
  log(context, "weight", tensors, 1);
}

void StatisticsMonitor::log(FitContext& context, const std::string& what,
                            const std::vector<at::Tensor>& tensors, double scale) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto groups = static_cast<int64_t>(names_.size());
  // The columns of `sums` are: sum of squares, sum, count. The columns of `extremes` are: maximum,
  // negated minimum.
  const auto sums = at::zeros({groups, 3}, at::kDouble);
  const auto extremes = at::full({groups, 2}, -kInfinity, at::kDouble);
  auto* sum = sums.data_ptr<double>();
  auto* extreme = extremes.data_ptr<double>();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (!context.training.store->counts(parameters_[i].name)) continue;
    const double squares = parallel::sum_of_squares({tensor});
    const double total = tensor.sum(at::kDouble).item<double>();
    const auto [least, greatest] = at::aminmax(tensor);
    for (const size_t group :
         groups_[i] == 0 ? std::vector<size_t>{0} : std::vector<size_t>{0, groups_[i]}) {
      sum[3 * group] += squares;
      sum[3 * group + 1] += total;
      sum[3 * group + 2] += static_cast<double>(tensor.numel());
      extreme[2 * group] = std::max(extreme[2 * group], greatest.item<double>());
      extreme[2 * group + 1] = std::max(extreme[2 * group + 1], -least.item<double>());
    }
  }
  context.training.store->reducer().sum(sums, "statistics");
  context.training.store->reducer().max(extremes, "statistics");
  const observe::LogOptions options{.sync_dist = true};
  for (size_t g = 0; g < names_.size(); ++g) {
    if (sum[3 * g + 2] == 0) continue;
    const auto suffix = g == 0 ? "" : "/" + names_[g];
    const auto put = [&](const char* kind, double value) {
      context.log->log(what + "_" + kind + suffix, value / scale, options);
    };
    put("norm", std::sqrt(sum[3 * g]));
    put("min", -extreme[2 * g + 1]);
    put("max", extreme[2 * g]);
    put("mean", sum[3 * g + 1] / sum[3 * g + 2]);
  }
}

}  // namespace troika::train
