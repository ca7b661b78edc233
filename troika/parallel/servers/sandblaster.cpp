#include "troika/parallel/servers/sandblaster.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/servers/embedded_world.h"
#include "troika/parallel/servers/launched_world.h"
#include "troika/server/batch/batch_replica.h"
#include "troika/server/scheduler.h"
#include "troika/server/world.h"

namespace troika::parallel {

namespace {

constexpr const char* kPoint = "x";
constexpr const char* kGradient = "g";

void require_servable(const std::vector<optim::Parameter>& parameters) {
  const auto refuse = [](const std::string& name, const std::string& got) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "Sandblaster trains parameters in host memory; " + name,
                 .got = got,
                 .expected = "float32 or float64 on the CPU"});
  };
  if (parameters.empty()) refuse("the module", "no parameter that is trained");
  for (const auto& [name, tensor, decay, box] : parameters) {
    const auto type = tensor.scalar_type();
    if (tensor.is_cpu() && (type == at::kFloat || type == at::kDouble)) continue;
    refuse(name, fmt::format("{} on {}", c10::toString(type), tensor.device().str()));
  }
}

std::span<const double> elements_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<double>(), static_cast<size_t>(tensor.numel())};
}

}  // namespace

class Sandblaster::Optimizer : public optim::FlatOptimizer {
 public:
  explicit Optimizer(const std::vector<optim::Parameter>& parameters)
      : FlatOptimizer(optim::FlatParameters(parameters), /*rate=*/1, {}, /*counts=*/false) {}

 private:
  void update(const std::vector<optim::FlatRange>& /*ranges*/) override {}
};

Sandblaster::Sandblaster(torch::nn::Module& module, const comm::Group& replicas,
                         const SandblasterOptions& options)
    : parameters_(trained_parameters(module)),
      options_(options.sandblaster),
      replicas_(replicas.size()),
      timeout_(replicas.options().timeout) {
  require_servable(parameters_);
  for (const auto& parameter : parameters_) elements_ += parameter.tensor.numel();
  make_same(replicas, module, true);
  start(replicas, options);
  spread_parameters();
  // An iteration begins when all replicas that the coordinator knows have asked for it.
  replicas.barrier({.label = "parameters of Sandblaster"});
}

void Sandblaster::start(const comm::Group& group, const SandblasterOptions& options) {
  const auto role = launched_role();
  auto scheduler = scheduler_options(options.servers);
  scheduler.tables = sandblaster_tables(options_, static_cast<uint64_t>(elements_));
  scheduler.ranges = ranges_of(options.servers, group.size(), elements_ * int64_t{sizeof(double)});
  server::WorldParts parts{.scheduler = scheduler};
  if (role.role != server::WorldRole::alone) {
    world_ = launched_world(group, role, options.servers, std::move(parts));
  } else {
    world_ = embedded_world(group, options.servers, std::move(parts), /*has_coordinator=*/true);
    if (group.rank() == 0) {
      coordination_ = std::make_unique<Coordination>(*world_, options_, replicas_, timeout_);
    }
  }
  worker_ = &world_->worker(deadline());
  replica_ = std::make_unique<server::BatchReplica>(
      world_->worker_endpoint(), *worker_,
      server::BatchReplicaOptions{.coordinator = server::kCoordinator,
                                  .service = server::kScheduler,
                                  .patience = limit_of(options.servers)});
}

Sandblaster::~Sandblaster() {
  replica_.reset();
  // A replica that has failed does not wait for others.
  if (std::uncaught_exceptions() > 0) return;
  try {
    // The others may train as long as they like.
    world_->leave(Deadline::after(std::chrono::years(100)));
  } catch (const Error& error) {
    log::warn("the parameter server: {}", error.what());
  }
}

Deadline Sandblaster::deadline() const {
  return Deadline::after(timeout_);
}

std::unique_ptr<optim::FlatOptimizer> Sandblaster::own_optimizer() {
  return std::make_unique<Optimizer>(parameters_);
}

int64_t Sandblaster::length(const std::string& table) const {
  if (table != kLbfgsNumbers) return elements_;
  return static_cast<int64_t>(IterationNumbers::kCount +
                              server::Lbfgs::state_size(static_cast<int>(options_.history)));
}

void Sandblaster::set_vector(const std::string& table, const at::Tensor& values) {
  const auto numbers = values.detach().reshape({-1}).to(at::kDouble).contiguous();
  if (numbers.numel() != length(table)) refuse_state(table);
  unwritten_[table] = numbers;
  is_read_ = false;
}

void Sandblaster::give_vectors() {
  std::vector<server::Handle> written;
  for (const auto& [table, numbers] : unwritten_) {
    written.push_back(worker_->assign(
        table, server::KeySpan{0, static_cast<uint64_t>(numbers.numel())}, elements_of(numbers)));
  }
  for (const auto& handle : written) handle.wait(deadline());
  unwritten_.clear();
}

at::Tensor Sandblaster::read(const std::string& table) {
  const auto pulled =
      worker_->pull(table, server::KeySpan{0, static_cast<uint64_t>(length(table))});
  pulled.wait(deadline());
  const auto values = pulled.values<double>();
  const auto result = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::ranges::copy(values, result.data_ptr<double>());
  return result;
}

void Sandblaster::set_parameters(const double* elements) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters_) {
    const auto& tensor = parameter.tensor;
    // LibTorch has no tensors of constant memory. This one is only read.
    tensor.detach().copy_(
        at::from_blob(const_cast<double*>(elements), tensor.sizes(), at::kDouble));
    elements += tensor.numel();
  }
}

IterationNumbers Sandblaster::iterate(const Compute& compute) {
  const int64_t round = rounds_++;
  give_vectors();
  is_read_ = false;
  replica_->ask(round);
  int64_t step = -1;  // whose parameters the module has
  while (const auto work = replica_->next(deadline())) {
    if (std::exchange(step, work->step) != work->step) {
      set_parameters(work->parameters().data());
    }
    std::vector<double> gradient(static_cast<size_t>(elements_));
    const auto loss = compute(
        {.portion = work->portion,
         .portions = static_cast<uint64_t>(options_.portions) * static_cast<uint64_t>(replicas_),
         .gradient = at::from_blob(gradient.data(), {elements_}, at::kDouble),
         .is_wanted = [&] { return replica_->is_wanted(*work); }});
    if (loss) {
      replica_->finish(*work, *loss, std::move(gradient));
    } else {
      replica_->give_up(*work);
    }
  }
  if (!replica_->has_ended(round)) {
    throw Error("server", ErrorKind::peer,
                {.what = "the coordinator has ended before the iteration",
                 .got = fmt::format("{} iterations of this run", round)});
  }
  const auto point = read(kPoint);
  set_parameters(point.data_ptr<double>());
  const auto numbers = read(kLbfgsNumbers);
  iterations_.push_back(IterationNumbers::from(elements_of(numbers)));
  return iterations_.back();
}

void Sandblaster::spread_parameters() {
  std::vector<at::Tensor> flat;
  for (const auto& parameter : parameters_) {
    flat.push_back(parameter.tensor.detach().reshape({-1}).to(at::kDouble));
  }
  set_vector(kPoint, at::cat(flat));
  set_vector(kLbfgsNumbers, at::zeros({length(kLbfgsNumbers)}, at::kDouble));
}

void Sandblaster::fetch_states() {
  give_vectors();
  if (std::exchange(is_read_, true)) return;
  const auto numbers = read(kLbfgsNumbers);
  states_.clear();
  states_.emplace_back(kLbfgsNumbers, numbers);
  const auto all = elements_of(numbers);
  auto names = server::Lbfgs::kept_names(all.subspan(IterationNumbers::kCount),
                                         static_cast<int>(options_.history));
  names.insert(names.end(), {kPoint, kGradient});
  for (const auto& name : names) states_.emplace_back(name, read(name));
}

void Sandblaster::load_state(const optim::NamedTensors& state) {
  const auto names = sandblaster_tables(options_, static_cast<uint64_t>(elements_));
  for (const auto& [name, tensor] : state) {
    if (name == kBucketOrder) continue;
    const bool is_known = std::ranges::any_of(
        names, [&, &own = name](const auto& table) { return table.name == own; });
    if (!is_known) refuse_state(name);
    set_vector(name, tensor);
  }
}

std::vector<std::pair<std::string, double>> Sandblaster::take_statistics() {
  const auto iterations = std::exchange(iterations_, {});
  if (iterations.empty()) return {};
  IterationNumbers sums;
  for (const auto& iteration : iterations) {
    sums.evaluations += iteration.evaluations;
    sums.backups += iteration.backups;
    sums.repeated += iteration.repeated;
  }
  return {{"lbfgs/evaluations", sums.evaluations},
          {"lbfgs/gradient", iterations.back().gradient},
          {"lbfgs/step", iterations.back().step},
          {"lbfgs/backups", sums.backups},
          {"lbfgs/repeated", sums.repeated}};
}

}  // namespace troika::parallel
