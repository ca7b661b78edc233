#include "troika/parallel/servers/served_table.h"

#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

constexpr int64_t kWidth = 256;

server::ValueType value_type(at::ScalarType type) {
  return type == at::kDouble ? server::ValueType::float64 : server::ValueType::float32;
}

server::Values values_of(const at::Tensor& numbers) {
  return {value_type(numbers.scalar_type()),
          {static_cast<const char*>(numbers.data_ptr()), numbers.nbytes()}};
}

// The number of updates as it fills the last numbers of a key's state.
at::Tensor update_count(int64_t updates, at::ScalarType type) {
  return at::tensor({updates}, at::kLong).view(type);
}

std::map<std::string, at::Tensor> by_name(const optim::NamedTensors& state) {
  return {state.begin(), state.end()};
}

}  // namespace

server::UpdateSpec update_of(const optim::OptimizerOptions& options) {
  server::UpdateSpec update{.rate = options.lr,
                            .momentum = options.momentum,
                            .beta1 = options.beta1,
                            .beta2 = options.beta2,
                            .epsilon = options.eps,
                            .weight_decay = options.weight_decay,
                            .nesterov = options.nesterov ? 1.0 : 0.0};
  if (options.name == "sgd") {
    update.kind = options.momentum > 0 ? server::UpdateKind::momentum : server::UpdateKind::sgd;
  } else if (options.name == "adam") {
    update.kind = server::UpdateKind::adam;
  } else if (options.name == "adamw") {
    update.kind = server::UpdateKind::adamw;
  } else if (options.name == "adagrad") {
    update.kind = server::UpdateKind::adagrad;
  } else {
    throw Error("parallel", ErrorKind::usage,
                {.what = "an optimizer that parameter servers do not have",
                 .got = options.name,
                 .expected = "sgd, adam, adamw or adagrad"});
  }
  return update;
}

std::vector<std::string> state_names(const server::UpdateSpec& update) {
  switch (update.kind) {
    case server::UpdateKind::momentum:
      return {"momentum_buffer"};
    case server::UpdateKind::adagrad:
      return {"sum"};
    case server::UpdateKind::adam:
    case server::UpdateKind::adamw:
      return {"exp_avg", "exp_avg_sq"};
    default:
      return {};
  }
}

bool counts_steps(const server::UpdateSpec& update) {
  return update.kind != server::UpdateKind::sgd && update.kind != server::UpdateKind::momentum;
}

ServedTable::ServedTable(std::string name, server::UpdateSpec update, double rate_factor,
                         at::ScalarType type)
    : name_(std::move(name)), update_(std::move(update)), rate_factor_(rate_factor), type_(type) {}

bool ServedTable::is_for(const server::UpdateSpec& update, double rate_factor) const {
  return update_ == update && rate_factor_ == rate_factor;
}

void ServedTable::add(const optim::Parameter& parameter, size_t index) {
  const int64_t keys = (parameter.tensor.numel() + kWidth - 1) / kWidth;
  members_.push_back({parameter, index, keys_, keys});
  keys_ += keys;
}

server::TableSpec ServedTable::spec(server::Application application) const {
  return {.name = name_,
          .type = value_type(type_),
          .keys = static_cast<uint64_t>(keys_),
          .width = static_cast<uint32_t>(kWidth),
          .application = application,
          .update = update_};
}

int64_t ServedTable::bytes() const {
  return keys_ * kWidth * static_cast<int64_t>(c10::elementSize(type_));
}

int64_t ServedTable::state_width() const {
  return static_cast<int64_t>(server::state_width(spec({})));
}

at::Tensor ServedTable::elements_of(const at::Tensor& numbers, const Member& member) const {
  const auto& shape = member.parameter.tensor;
  return numbers.narrow(0, member.first, member.keys)
      .reshape({-1})
      .narrow(0, 0, shape.numel())
      .view(shape.sizes());
}

std::optional<server::Handle> ServedTable::push(server::Worker& worker,
                                                const std::vector<at::Tensor>& gradients,
                                                double rate, double factor) {
  // Messages that are sent again own the numbers, also after their call is finished.
  if (!gradients_ || gradients_.use_count() > 1) gradients_ = new_numbers(kWidth);
  std::vector<server::Key> keys;
  std::vector<at::Tensor> parts;
  for (const auto& member : members_) {
    const auto& gradient = gradients[member.index];
    if (!gradient.defined() || member.keys == 0) continue;
    elements_of(*gradients_, member).copy_(gradient);
    parts.push_back(gradients_->narrow(0, member.first, member.keys));
    for (int64_t key = 0; key < member.keys; ++key) {
      keys.push_back(static_cast<server::Key>(member.first + key));
    }
  }
  if (keys.empty()) return {};
  const bool is_whole = static_cast<int64_t>(keys.size()) == keys_;
  const auto pushed = is_whole ? gradients_ : std::make_shared<at::Tensor>(at::cat(parts));
  if (factor != 1) pushed->mul_(factor);
  return worker.push(name_, is_whole ? server::Keys(all()) : server::Keys(keys), values_of(*pushed),
                     {.rate = rate * rate_factor_, .keeps = pushed});
}

server::Handle ServedTable::pull(server::Worker& worker) {
  // Another call may still write to it, or its values may not be taken yet.
  if (!pulled_ || pulled_.use_count() > 1) pulled_ = new_numbers(kWidth);
  return worker.pull(name_, all(), {.into = memory_of(pulled_)});
}

server::Handle ServedTable::pull_state(server::Worker& worker) const {
  return worker.pull_state(name_, all(), {.into = memory_of(new_numbers(state_width()))});
}

std::shared_ptr<at::Tensor> ServedTable::new_numbers(int64_t width) const {
  return std::make_shared<at::Tensor>(at::zeros({keys_, width}, type_));
}

server::ValueMemory ServedTable::memory_of(const std::shared_ptr<at::Tensor>& tensor) const {
  return {value_type(type_), {static_cast<char*>(tensor->data_ptr()), tensor->nbytes()}, tensor};
}

server::Handle ServedTable::assign(server::Worker& worker, const optim::NamedTensors& state) const {
  const auto names = state_names(update_);
  const auto states = by_name(state);
  const auto kept = new_numbers(state_width());
  const auto& numbers = *kept;
  const auto counted = kWidth * (1 + static_cast<int64_t>(names.size()));
  const auto counts = numbers.narrow(1, counted, state_width() - counted);
  for (const auto& member : members_) {
    const auto put = [&](int64_t column, const at::Tensor& values) {
      const auto whole = at::zeros({member.keys * kWidth}, type_);
      whole.narrow(0, 0, values.numel()).view(values.sizes()).copy_(values);
      numbers.narrow(0, member.first, member.keys)
          .narrow(1, column * kWidth, kWidth)
          .copy_(whole.view({member.keys, kWidth}));
    };
    put(0, member.parameter.tensor);
    if (states.empty()) continue;
    const auto& name = member.parameter.name;
    for (size_t k = 0; k < names.size(); ++k) {
      put(static_cast<int64_t>(k) + 1, states.at(name + "." + names[k]));
    }
    if (!counts_steps(update_)) continue;
    const auto steps = states.at(name + ".step").item<int64_t>();
    counts.narrow(0, member.first, member.keys).copy_(update_count(steps, type_));
  }
  return worker.assign_state(name_, all(), values_of(numbers), {.keeps = kept});
}

at::Tensor ServedTable::numbers(const server::Handle& handle, int64_t width) const {
  const auto view = [&]<typename T>(std::span<const T> values) {
    // LibTorch has no tensors of constant memory. The result is only read.
    return at::from_blob(const_cast<T*>(values.data()), {keys_, width}, type_);
  };
  return type_ == at::kDouble ? view(handle.values<double>()) : view(handle.values<float>());
}

void ServedTable::take(const server::Handle& pulled) const {
  const auto values = numbers(pulled, kWidth);
  for (const auto& member : members_) {
    member.parameter.tensor.detach().copy_(elements_of(values, member));
  }
}

void ServedTable::take_state(const server::Handle& pulled, const optim::NamedTensors& state) const {
  const auto names = state_names(update_);
  const auto states = by_name(state);
  const auto width = state_width();
  const auto all = numbers(pulled, width);
  for (const auto& member : members_) {
    const auto column = [&](int64_t k) {
      return elements_of(all.narrow(1, k * kWidth, kWidth), member);
    };
    member.parameter.tensor.detach().copy_(column(0));
    const auto& name = member.parameter.name;
    for (size_t k = 0; k < names.size() && !states.empty(); ++k) {
      states.at(name + "." + names[k]).copy_(column(static_cast<int64_t>(k) + 1));
    }
    if (!counts_steps(update_) || states.empty() || member.keys == 0) continue;
    const auto counted = kWidth * (1 + static_cast<int64_t>(names.size()));
    states.at(name + ".step")
        .copy_(all.select(0, member.first)
                   .narrow(0, counted, width - counted)
                   .contiguous()
                   .view(at::kLong)
                   .squeeze(0));
  }
}

}  // namespace troika::parallel
