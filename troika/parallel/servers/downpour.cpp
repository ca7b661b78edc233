#include "troika/parallel/servers/downpour.h"

#include <algorithm>
#include <exception>
#include <string>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/compat/torch.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/servers/replica_numbers.h"
#include "troika/parallel/servers/served_model.h"
#include "troika/server/worker.h"
#include "troika/server/world.h"

namespace troika::parallel {

namespace {

constexpr int64_t kBufferWidth = 256;

int64_t buffer_keys(const torch::nn::Module& module) {
  int64_t numbers = 0;
  for (const auto& buffer : module.buffers()) numbers += buffer.numel();
  return (numbers + kBufferWidth - 1) / kBufferWidth;
}

server::TableSpec buffers_spec(const std::string& table, int64_t keys) {
  return {.name = table,
          .type = server::ValueType::float64,
          .keys = static_cast<uint64_t>(keys),
          .width = static_cast<uint32_t>(kBufferWidth),
          .application = server::Application::per_push,
          .update = {.kind = server::UpdateKind::sum}};
}

void give_buffers(const torch::nn::Module& module, const std::string& table, server::Worker& worker,
                  Deadline deadline) {
  const int64_t keys = buffer_keys(module);
  if (keys == 0) return;
  const auto numbers = at::zeros({keys * kBufferWidth}, at::kDouble);
  int64_t begin = 0;
  for (const auto& buffer : module.buffers()) {
    numbers.narrow(0, begin, buffer.numel()).copy_(buffer.reshape({-1}));
    begin += buffer.numel();
  }
  const std::span<const double> values(numbers.data_ptr<double>(),
                                       static_cast<size_t>(numbers.numel()));
  worker.assign(table, server::KeySpan{0, static_cast<uint64_t>(keys)}, values).wait(deadline);
}

void take_buffers(const torch::nn::Module& module, const std::string& table, server::Worker& worker,
                  Deadline deadline) {
  const int64_t keys = buffer_keys(module);
  if (keys == 0) return;
  const auto pulled = worker.pull(table, server::KeySpan{0, static_cast<uint64_t>(keys)});
  pulled.wait(deadline);
  const auto values = pulled.values<double>();
  // LibTorch has no tensors of constant memory. The result is only read.
  const auto numbers = at::from_blob(const_cast<double*>(values.data()),
                                     {static_cast<int64_t>(values.size())}, at::kDouble);
  int64_t begin = 0;
  for (const auto& buffer : module.buffers()) {
    buffer.copy_(numbers.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
}

void require_downpour(const DownpourOptions& options) {
  const auto& name = options.served.optimizer.name;
  if (name != "sgd" && name != "adagrad") {
    throw Error("parallel", ErrorKind::usage,
                {.what = "the servers' optimizer of Downpour SGD",
                 .got = name,
                 .expected = "sgd or adagrad"});
  }
  const auto& consistency = options.served.servers.consistency;
  if (consistency != "eventual") {
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = "the consistency of Downpour SGD", .got = consistency, .expected = "eventual"});
  }
}

}  // namespace

struct Downpour::Fetch {
  std::vector<server::Handle> values;
  server::Handle pushes;
};

namespace {

// Launched servers have one clock for all places, and others a clock for each.
std::vector<std::string> prefixes_with_these_cuts(const ReplicaPlace& place) {
  const bool is_launched = launched_role().role != server::WorldRole::alone;
  return is_launched ? place.prefixes : std::vector<std::string>{place.prefix};
}

}  // namespace

Downpour::Downpour(torch::nn::Module& module, const ReplicaPlace& place,
                   const DownpourOptions& options)
    : module_(module),
      options_(options.downpour),
      buffers_(place.prefix + "buffers"),
      replica_(place.replicas.rank()),
      timeout_(place.replicas.options().timeout),
      numbers_(std::make_unique<ReplicaNumbers>(replica_, place.replicas.size(), place.prefix,
                                                prefixes_with_these_cuts(place))),
      warm_start_left_(place.replicas.size() > 1 ? options_.warm_start_steps : 0) {
  require_downpour(options);
  const auto& replicas = place.replicas;
  model_ = std::make_unique<ServedModel>(module, options.served, 1.0, place.prefix);
  sums_.resize(model_->parameters().size());
  make_same(replicas, module_, true);
  std::vector<server::TableSpec> tables{numbers_->spec()};
  if (const auto keys = buffer_keys(module_); keys > 0) {
    tables.push_back(buffers_spec(buffers_, keys));
  }
  model_->start(place, options.served.servers, server::Application::per_push, tables);
  numbers_->use(model_->worker());
  if (replica_ == 0) model_->assign(deadline());
  // Without the parameters of a rank 0 that is lost now, nobody may begin.
  replicas.barrier({.label = "parameters of Downpour SGD"});
  model_->worker().begin_step().wait(deadline());
  if (warm_start_left_ > 0 && replica_ > 0) {
    warm_start_left_ = 0;
    end_server_step();
    start_fetch();
    take_fetch();
  }
}

Downpour::~Downpour() {
  // A replica that has failed does not wait for others.
  if (std::uncaught_exceptions() > 0) return;
  try {
    end_warm_start();
    // The others may train as long as they like.
    model_->world().leave(Deadline::after(std::chrono::years(100)));
  } catch (const Error& error) {
    log::warn("the parameter server: {}", error.what());
  }
}

Deadline Downpour::deadline() const {
  return Deadline::after(timeout_);
}

std::vector<optim::Parameter> Downpour::parameters() const {
  return model_->parameters();
}

std::unique_ptr<optim::FlatOptimizer> Downpour::own_optimizer() {
  return model_->make_optimizer([this](double rate) { rate_ = rate; });
}

bool Downpour::begin_step(double weight) {
  factor_ = weight;
  return weight > 0;
}

bool Downpour::has_sums() const {
  return std::ranges::any_of(sums_, [](const auto& sum) { return sum.defined(); });
}

void Downpour::add_gradients() {
  numbers_->add_gradient();
  const auto& parameters = model_->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].tensor.grad();
    if (!gradient.defined()) continue;
    auto& sum = sums_[i];
    if (!sum.defined() && options_.n_push == 1 && factor_ == 1) {
      sum = gradient;  // pushed before the next backward pass
    } else if (!sum.defined()) {
      sum = gradient * factor_;
    } else {
      sum.add_(gradient, factor_);
    }
  }
}

void Downpour::step_locally(const std::vector<at::Tensor>& gradients) {
  const double rate = *rate_ * options_.local_rate;
  if (rate == 0) return;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) {
      model_->parameters()[i].tensor.detach().sub_(gradients[i], rate * model_->rate_factor(i));
    }
  }
}

void Downpour::step_by(const std::function<void()>& update) {
  rate_.reset();
  update();
  if (!rate_) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameters on servers were stepped by another optimizer",
                 .expected = "that of own_optimizer()"});
  }
  const at::NoGradGuard no_grad;
  const bool is_first = !has_sums();
  add_gradients();
  ++steps_;
  if (fetch_) {
    take_fetch();
    step_locally(sums_);
  } else if (is_first) {
    step_locally(sums_);
  } else {
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : model_->parameters()) {
      const auto& gradient = parameter.tensor.grad();
      gradients.push_back(gradient.defined() && factor_ != 1 ? gradient * factor_ : gradient);
    }
    step_locally(gradients);
  }
  if (steps_ % options_.n_push == 0) push();
  if (steps_ % options_.n_fetch == 0) {
    start_fetch();
    if (!options_.overlap) {
      take_fetch();
      step_locally(sums_);
    }
  }
  if (warm_start_left_ > 1) {
    --warm_start_left_;
  } else {
    end_warm_start();
  }
}

void Downpour::push() {
  for (const auto& handle : pushed_) handle.wait(deadline());
  pushed_ = model_->push(sums_, *rate_, 1);
  for (auto& sum : sums_) sum.reset();
  numbers_->count_push();
}

void Downpour::start_fetch() {
  auto values = model_->pull();
  fetch_ = std::make_unique<Fetch>(Fetch{std::move(values), numbers_->start_fetch()});
}

void Downpour::take_fetch() {
  const auto fetch = std::move(fetch_);
  model_->take(fetch->values, deadline());
  numbers_->take_fetch(fetch->pushes, deadline());
}

void Downpour::end_warm_start() {
  if (std::exchange(warm_start_left_, 0) > 0) end_server_step();
}

void Downpour::end_server_step() {
  auto& worker = model_->worker();
  const int64_t step = worker.step();
  worker.end_step();
  wait_for_others(step);
  worker.begin_step().wait(deadline());
}

void Downpour::wait_for_others(int64_t step) {
  double before = -1;
  while (true) {
    try {
      return model_->worker().wait_until_committed(step, deadline());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timeout) throw;
      const double pushes = numbers_->pushes(deadline());
      if (pushes == before) throw;
      before = pushes;
    }
  }
}

void Downpour::make_cut(const std::function<void(bool gives)>& read) {
  end_warm_start();
  for (const auto& handle : pushed_) handle.wait(deadline());
  pushed_.clear();
  fetch_.reset();
  const int64_t cut = model_->worker().step();
  numbers_->begin_cut(cut, deadline());
  end_server_step();
  numbers_->read_cut(deadline());
  const at::NoGradGuard no_grad;
  // A replica that is lost after it has begun the cut may not give; then the next one does. All
  // replicas make equally many rounds, because a later giver's mark does not end an earlier round.
  for (int number = 0;; ++number) {
    const bool gives = numbers_->is_participant(cut, number);
    if (gives) give_buffers(module_, buffers_, model_->worker(), deadline());
    read(gives);
    if (gives) numbers_->end_giving(cut, number, deadline());
    // No replica pushes before all have read.
    end_server_step();
    if (numbers_->has_been_given(cut, number, deadline())) break;
  }
  take_buffers(module_, buffers_, model_->worker(), deadline());
  steps_ = 0;
}

void Downpour::synchronize_replicas() {
  if (steps_ == 0) return;
  if (has_sums()) push();
  make_cut([this](bool /*gives*/) { model_->take_states(deadline()); });
}

void Downpour::spread_parameters() {
  if (has_sums()) push();
  make_cut([this](bool gives) {
    if (gives) model_->assign(deadline());
  });
  start_fetch();
  take_fetch();
}

std::vector<std::pair<std::string, double>> Downpour::take_statistics() {
  return numbers_->take_statistics();
}

void Downpour::load_state(const optim::NamedTensors& state) {
  for (const auto& [name, tensor] : without_sums(state)) {
    if (name != kBucketOrder) refuse_state(name);
  }
}

}  // namespace troika::parallel
