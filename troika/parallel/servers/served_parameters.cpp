#include "troika/parallel/servers/served_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <numeric>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/parallel/servers/served_table.h"

namespace troika::parallel {

namespace {

constexpr int64_t kMostStaleness = 1023;
// Each range of a table is one message, and its state up to three times as long.
constexpr int64_t kRangeBytes = int64_t{64} << 20;
constexpr int64_t kRangesOfServer = 4;

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

// A barrier that can be waited for with a deadline. A rank that failed waits together with those at
// a cut, too.
comm::Work start_barrier(const comm::Group& group, std::string_view label) {
  return group.all_reduce(at::ones({1}), comm::ReduceOp::sum, {.label = label, .async_op = true});
}

}  // namespace

// Its memory for states takes what synchronize_replicas() reads from the servers.
class ServedParameters::Optimizer : public optim::FlatOptimizer {
 public:
  Optimizer(ServedParameters& served, const server::UpdateSpec& update)
      : FlatOptimizer(optim::FlatParameters(served.parameters_), served.optimizer_.lr,
                      state_names(update), counts_steps(update)),
        served_(served) {}

 private:
  void update(const std::vector<optim::FlatRange>& /*ranges*/) override {
    served_.push(learning_rate());
  }

  ServedParameters& served_;
};

ServedParameters::ServedParameters(torch::nn::Module& module, comm::Group group,
                                   const ServedOptions& options)
    : module_(module),
      group_(std::move(group)),
      parameters_(trained_parameters(module)),
      optimizer_(options.optimizer),
      limit_(limit_of(options.servers)),
      staleness_(kMostStaleness + 1) {
  make_tables(options);
  make_same(group_, module_, true);
  start(options.servers);
}

ServedParameters::~ServedParameters() {
  // A rank that has failed does not wait for others.
  if (!leaves_ || !worker_ || std::uncaught_exceptions() > 0) return;
  try {
    world_->leave(Deadline::after(2 * limit_));
  } catch (const Error& error) {
    log::warn("the parameter server: {}", error.what());
  }
}

void ServedParameters::make_tables(const ServedOptions& options) {
  const auto type = type_of(parameters_);
  for (const auto& parameter : parameters_) {
    const auto own = options.optimizer_of ? options.optimizer_of(parameter) : optimizer_;
    auto update = update_of(own);
    update.rate = optimizer_.lr;
    update.scale = 1.0 / group_.size();
    const double rate_factor = own.lr == optimizer_.lr ? 1 : own.lr / optimizer_.lr;
    auto found = std::ranges::find_if(
        tables_, [&](const auto& table) { return table->is_for(update, rate_factor); });
    if (found == tables_.end()) {
      tables_.push_back(std::make_unique<ServedTable>(fmt::format("parameters-{}", tables_.size()),
                                                      update, rate_factor, type));
      found = tables_.end() - 1;
    }
    (*found)->add(parameter);
  }
}

void ServedParameters::start(const layout::ServerExchange& servers) {
  const bool is_eventual = servers.consistency == "eventual";
  const auto role = launched_role();
  const bool is_launched = role.role != server::WorldRole::alone;
  auto scheduler = scheduler_options(servers);
  int64_t bytes = 0;
  for (const auto& table : tables_) {
    scheduler.tables.push_back(
        table->spec(is_eventual ? server::Application::per_push : server::Application::per_step));
    bytes += table->bytes();
  }
  const int64_t count = servers.count > 0 ? servers.count : group_.size();
  scheduler.ranges = static_cast<uint32_t>(kRangesOfServer * count + bytes / kRangeBytes);
  const auto push_filters = server::parse_filters(servers.push_filters);
  const auto pull_filters = server::parse_filters(servers.pull_filters);
  with_servers([&] {
    leaves_ = is_launched;
    world_ = is_launched ? launched_world(group_, role, servers, scheduler)
                         : embedded_world(group_, servers, scheduler);
    worker_ = &world_->worker(deadline());
    for (const auto& table : tables_) {
      worker_->set_filters(table->name(), push_filters, pull_filters);
    }
  });
  give_to_servers();
  with_servers([&] { worker_->begin_step().wait(deadline()); });
  ++staleness_[0];
}

Deadline ServedParameters::deadline() const {
  return Deadline::after(group_.options().timeout);
}

void ServedParameters::with_servers(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer && error.kind() != ErrorKind::timeout) throw;
    // If only a server is lost, the other ranks may wait for this rank's step instead.
    try {
      start_barrier(group_, "after a failure of parameter servers").wait(Deadline::after(limit_));
    } catch (const Error& lost) {
      if (lost.kind() == ErrorKind::peer) throw;
    }
    throw;
  }
}

std::unique_ptr<optim::FlatOptimizer> ServedParameters::own_optimizer() {
  auto optimizer = std::make_unique<Optimizer>(*this, update_of(optimizer_));
  states_ = optimizer->state();
  return optimizer;
}

bool ServedParameters::begin_step(double weight) {
  const auto weights = gather_weights(group_, weight);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (total > 0) factor_ = weight * group_.size() / total;
  return total > 0;
}

void ServedParameters::push(double rate) {
  with_servers([&] {
    for (const auto& table : tables_) table->push(*worker_, rate, factor_);
  });
  has_pushed_ = true;
}

void ServedParameters::step_by(const std::function<void()>& update) {
  update();
  if (!std::exchange(has_pushed_, false)) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameters on servers were stepped by another optimizer",
                 .expected = "that of own_optimizer()"});
  }
  is_cut_ = false;
  with_servers([&] {
    worker_->end_step();
    begin_next_step();
  });
}

void ServedParameters::begin_next_step() {
  worker_->begin_step().wait(deadline());
  const int64_t staleness = worker_->step() - 1 - worker_->committed();
  ++staleness_[static_cast<size_t>(std::min(staleness, kMostStaleness))];
  std::vector<server::Handle> pulled;
  for (const auto& table : tables_) pulled.push_back(table->pull(*worker_));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tables_.size(); ++i) {
    pulled[i].wait(deadline());
    tables_[i]->take(pulled[i]);
  }
}

void ServedParameters::synchronize_replicas() {
  if (!is_cut_) {
    const at::NoGradGuard no_grad;
    with_servers([&] {
      worker_->wait_until_committed(worker_->step() - 1, deadline());
      std::vector<server::Handle> pulled;
      for (const auto& table : tables_) pulled.push_back(table->pull_state(*worker_));
      for (size_t i = 0; i < tables_.size(); ++i) {
        pulled[i].wait(deadline());
        tables_[i]->take_state(pulled[i], states_);
      }
    });
    // No rank pushes before all have pulled.
    start_barrier(group_, "cut of parameter servers").wait();
    is_cut_ = true;
  }
  broadcast_packed(group_, module_.buffers(), 0, "module buffers");
}

void ServedParameters::spread_parameters() {
  with_servers([&] { worker_->wait_until_committed(worker_->step() - 1, deadline()); });
  group_.barrier({.label = "before an assignment to parameter servers"});
  give_to_servers();
}

void ServedParameters::give_to_servers() {
  const at::NoGradGuard no_grad;
  with_servers([&] {
    if (group_.rank() != 0) return;
    std::vector<server::Handle> assigned;
    for (const auto& table : tables_) assigned.push_back(table->assign(*worker_, states_));
    for (const auto& handle : assigned) handle.wait(deadline());
  });
  group_.barrier({.label = "assignment to parameter servers"});
}

std::vector<std::pair<std::string, double>> ServedParameters::take_statistics() {
  const auto counts = at::tensor(staleness_, at::kLong);
  group_.all_reduce(counts, comm::ReduceOp::sum, {.label = "staleness"});
  std::ranges::fill(staleness_, 0);
  const auto* const begin = counts.data_ptr<int64_t>();
  const int64_t total = std::accumulate(begin, begin + counts.numel(), int64_t{0});
  if (total == 0) return {};
  // The smallest staleness that at least this share of the steps does not exceed.
  const auto percentile = [&](double share) {
    int64_t seen = 0;
    for (int64_t i = 0; i < counts.numel(); ++i) {
      seen += begin[i];
      if (static_cast<double>(seen) >= share * static_cast<double>(total))
        return static_cast<double>(i);
    }
    return static_cast<double>(kMostStaleness);
  };
  return {{"staleness/p50", percentile(0.5)},
          {"staleness/p95", percentile(0.95)},
          {"staleness/max", percentile(1)}};
}

void ServedParameters::load_state(const optim::NamedTensors& state) {
  for (const auto& [name, tensor] : state) {
    if (name != kBucketOrder) refuse_state(name);
  }
}

}  // namespace troika::parallel
