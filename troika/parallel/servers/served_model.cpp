#include "troika/parallel/servers/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/parallel/parameter_store.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/served_parameters.h"
#include "troika/parallel/servers/served_table.h"

namespace troika::parallel {

namespace {

at::ScalarType type_of(const std::vector<optim::Parameter>& parameters) {
  const auto refuse = [](const std::string& name, const std::string& got) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameter servers keep parameters in host memory, all float32 or all "
                         "float64; " +
                         name,
                 .got = got,
                 .expected = "float32 or float64 on the CPU"});
  };
  if (parameters.empty()) refuse("the module", "no parameter that is trained");
  const auto type = parameters.front().tensor.scalar_type();
  for (const auto& [name, tensor, decay, box] : parameters) {
    const bool fits = tensor.is_cpu() && tensor.scalar_type() == type &&
                      (type == at::kFloat || type == at::kDouble);
    if (!fits) {
      refuse(name,
             fmt::format("{} on {}", c10::toString(tensor.scalar_type()), tensor.device().str()));
    }
  }
  return type;
}

}  // namespace

std::vector<std::pair<std::string, double>> staleness_metrics(std::span<const int64_t> steps) {
  const int64_t total = std::accumulate(steps.begin(), steps.end(), int64_t{0});
  if (total == 0) return {};
  // The smallest staleness that at least this share of the steps does not exceed.
  const auto percentile = [&](double share) {
    int64_t seen = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      seen += steps[i];
      if (static_cast<double>(seen) >= share * static_cast<double>(total))
        return static_cast<double>(i);
    }
    return static_cast<double>(kMostStaleness);
  };
  const auto between = [&](int64_t first, int64_t last) {
    int64_t sum = 0;
    for (int64_t i = first; i <= last && i < std::ssize(steps); ++i) {
      sum += steps[static_cast<size_t>(i)];
    }
    return static_cast<double>(sum);
  };
  return {{"staleness/p50", percentile(0.5)},
          {"staleness/p95", percentile(0.95)},
          {"staleness/max", percentile(1)},
          {"staleness/steps_0", between(0, 0)},
          {"staleness/steps_1", between(1, 1)},
          {"staleness/steps_2_to_3", between(2, 3)},
          {"staleness/steps_4_to_7", between(4, 7)},
          {"staleness/steps_8_or_more", between(8, kMostStaleness)}};
}

namespace {

// Tensors of a part of a model keep their shapes when the module becomes whole.
std::vector<optim::Parameter> detached(std::vector<optim::Parameter> parameters) {
  for (auto& parameter : parameters) parameter.tensor = parameter.tensor.detach();
  return parameters;
}

}  // namespace

// Its memory for states takes what take_states() reads from the servers.
class ServedModel::Optimizer : public optim::FlatOptimizer {
 public:
  Optimizer(const ServedModel& model, const server::UpdateSpec& update,
            std::function<void(double)> step)
      : FlatOptimizer(
            optim::FlatParameters(model.is_part_ ? detached(model.parameters_) : model.parameters_),
            model.optimizer_.lr, state_names(update), counts_steps(update)),
        step_(std::move(step)) {}

 private:
  void update(const std::vector<optim::FlatRange>& /*ranges*/) override { step_(learning_rate()); }

  const std::function<void(double)> step_;
};

ServedModel::ServedModel(const torch::nn::Module& module, const ServedOptions& options,
                         double scale, const std::string& prefix)
    : optimizer_(options.optimizer),
      parameters_(trained_parameters(module)),
      is_part_(!prefix.empty()) {
  const auto type = type_of(parameters_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& parameter = parameters_[i];
    const auto own = options.optimizer_of ? options.optimizer_of(parameter) : optimizer_;
    auto update = update_of(own);
    update.rate = optimizer_.lr;
    update.scale = scale;
    const double rate_factor = own.lr == optimizer_.lr ? 1 : own.lr / optimizer_.lr;
    auto found = std::ranges::find_if(
        tables_, [&](const auto& table) { return table->is_for(update, rate_factor); });
    if (found == tables_.end()) {
      tables_.push_back(std::make_unique<ServedTable>(
          fmt::format("{}parameters-{}", prefix, tables_.size()), update, rate_factor, type));
      found = tables_.end() - 1;
    }
    (*found)->add(parameter, i);
    rate_factors_.push_back(rate_factor);
  }
}

ServedModel::~ServedModel() = default;

std::unique_ptr<optim::FlatOptimizer> ServedModel::make_optimizer(
    std::function<void(double rate)> step) {
  auto optimizer = std::make_unique<Optimizer>(*this, update_of(optimizer_), std::move(step));
  states_ = optimizer->state();
  return optimizer;
}

namespace {

// Returns the tables of all places, whose ranks have different ones.
std::vector<server::TableSpec> tables_of_all(const comm::Group& all,
                                             const std::vector<server::TableSpec>& own) {
  std::string text;
  for (const auto& table : own) text += server::to_text(table) + "\n";
  std::vector<server::TableSpec> tables;
  for (const auto& of_rank : all.all_gather_text(text, "tables")) {
    for (const auto& line : split(trim(of_rank), '\n')) {
      auto table = server::parse_table(line);
      const bool is_known =
          std::ranges::any_of(tables, [&](const auto& known) { return known.name == table.name; });
      if (!is_known) tables.push_back(std::move(table));
    }
  }
  return tables;
}

}  // namespace

void ServedModel::start(const ReplicaPlace& place, const layout::ServerExchange& servers,
                        server::Application application,
                        const std::vector<server::TableSpec>& others) {
  const auto role = launched_role();
  is_launched_ = role.role != server::WorldRole::alone;
  auto scheduler = scheduler_options(servers);
  int64_t bytes = 0;
  for (const auto& table : tables_) {
    scheduler.tables.push_back(table->spec(application));
    bytes += table->bytes();
  }
  scheduler.tables.insert(scheduler.tables.end(), others.begin(), others.end());
  const auto& group = is_launched_ ? place.all : place.replicas;
  if (is_launched_ && !place.prefix.empty()) {
    scheduler.tables = tables_of_all(place.all, scheduler.tables);
    bytes *= place.all.size() / place.replicas.size();
  }
  scheduler.ranges = ranges_of(servers, group.size(), bytes);
  const auto push_filters = server::parse_filters(servers.push_filters);
  const auto pull_filters = server::parse_filters(servers.pull_filters);
  server::WorldParts parts{.scheduler = scheduler};
  world_ = is_launched_ ? launched_world(group, role, servers, std::move(parts))
                        : embedded_world(group, servers, std::move(parts));
  worker_ = &world_->worker(Deadline::after(group.options().timeout));
  for (const auto& table : tables_) {
    worker_->set_filters(table->name(), push_filters, pull_filters);
  }
}

std::vector<server::Handle> ServedModel::push(const std::vector<at::Tensor>& gradients, double rate,
                                              double factor) {
  std::vector<server::Handle> pushed;
  for (const auto& table : tables_) {
    if (const auto handle = table->push(*worker_, gradients, rate, factor)) {
      pushed.push_back(*handle);
    }
  }
  return pushed;
}

std::vector<server::Handle> ServedModel::pull() {
  std::vector<server::Handle> pulled;
  for (const auto& table : tables_) pulled.push_back(table->pull(*worker_));
  return pulled;
}

void ServedModel::take(const std::vector<server::Handle>& pulled, Deadline deadline) const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tables_.size(); ++i) {
    pulled[i].wait(deadline);
    tables_[i]->take(pulled[i]);
  }
}

void ServedModel::take_states(Deadline deadline) {
  const at::NoGradGuard no_grad;
  std::vector<server::Handle> pulled;
  for (const auto& table : tables_) pulled.push_back(table->pull_state(*worker_));
  for (size_t i = 0; i < tables_.size(); ++i) {
    pulled[i].wait(deadline);
    tables_[i]->take_state(pulled[i], states_);
  }
}

void ServedModel::assign(Deadline deadline) {
  const at::NoGradGuard no_grad;
  std::vector<server::Handle> assigned;
  for (const auto& table : tables_) assigned.push_back(table->assign(*worker_, states_));
  for (const auto& handle : assigned) handle.wait(deadline);
}

}  // namespace troika::parallel
