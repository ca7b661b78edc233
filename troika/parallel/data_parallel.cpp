#include "troika/parallel/data_parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

using nn::StateTensor;

std::string describe(const torch::nn::Module& module) {
  std::string text;
  for (const auto& [name, tensor, is_buffer] : nn::named_state(module)) {
    const char* what = is_buffer                ? "buffer"
                       : tensor.requires_grad() ? "parameter"
                                                : "frozen parameter";
    text += fmt::format("{} {} {} [{}]\n", what, name, c10::toString(tensor.scalar_type()),
                        fmt::join(tensor.sizes(), ", "));
  }
  return text;
}

std::string first_difference(const std::string& mine, const std::string& theirs) {
  const auto a = split(mine, '\n');
  const auto b = split(theirs, '\n');
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() && !a[i].empty() ? a[i] : "nothing more";
    const std::string right = i < b.size() && !b[i].empty() ? b[i] : "nothing more";
    if (left != right) return fmt::format("{} where rank 0 has {}", left, right);
  }
  return {};
}

// Copies rank 0's tensors to all ranks, packed by type so that many small ones cost one message.
void broadcast_packed(const comm::Group& group, const std::vector<at::Tensor>& tensors,
                      const std::string& label) {
  const at::NoGradGuard no_grad;
  std::map<c10::ScalarType, std::vector<at::Tensor>> by_type;
  for (const auto& tensor : tensors) by_type[tensor.scalar_type()].push_back(tensor.detach());
  for (auto& [type, members] : by_type) {
    std::vector<at::Tensor> flat;
    for (const auto& member : members) flat.push_back(member.reshape({-1}));
    const auto packed = at::cat(flat);
    group.broadcast(packed, 0, {.label = label});
    if (group.rank() == 0) continue;
    int64_t at = 0;
    for (auto& member : members) {
      member.copy_(packed.narrow(0, at, member.numel()).view(member.sizes()));
      at += member.numel();
    }
  }
}

// One bucket is open per type and device; it closes when it reaches its limit.
std::vector<std::vector<StateTensor>> assign_buckets(std::vector<StateTensor> parameters,
                                                     const DataParallelOptions& options) {
  struct Open {
    c10::ScalarType type;
    c10::Device device;
    size_t index;
    int64_t bytes;
  };
  std::vector<std::vector<StateTensor>> buckets;
  std::vector<Open> open;
  // Gradients arrive roughly in the reverse order of registration.
  std::reverse(parameters.begin(), parameters.end());
  for (auto& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& o) {
      return o.type == tensor.scalar_type() && o.device == tensor.device();
    });
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {tensor.scalar_type(), tensor.device(), buckets.size(), 0});
      buckets.emplace_back();
    }
    bucket->bytes += static_cast<int64_t>(tensor.nbytes());
    const int64_t limit = bucket->index == 0 ? options.first_bucket_bytes : options.bucket_bytes;
    buckets[bucket->index].push_back(std::move(parameter));
    if (bucket->bytes >= limit) open.erase(bucket);
  }
  return buckets;
}

}  // namespace

DataParallel::DataParallel(torch::nn::Module& module, comm::Group group,
                           const DataParallelOptions& options)
    : module_(module), group_(std::move(group)), broadcast_buffers_(options.broadcast_buffers) {
  check_same_parameters();
  broadcast_state();
  make_buckets(options);
}

DataParallel::~DataParallel() = default;

void DataParallel::check_same_parameters() const {
  const std::string mine = describe(module_);
  const std::string reference = group_.broadcast_text(mine, 0, "module description");
  // Every rank learns of every difference, so that all of them stop here with the cause.
  const auto differences =
      group_.all_gather_text(first_difference(mine, reference), "module comparison");
  for (size_t r = 0; r < differences.size(); ++r) {
    if (differences[r].empty()) continue;
    throw Error("parallel", ErrorKind::usage,
                {.what = fmt::format("rank {}'s module is not rank 0's", r),
                 .got = differences[r],
                 .hint = "every rank must build the same model"});
  }
}

void DataParallel::broadcast_state() {
  std::vector<at::Tensor> state;
  for (const auto& item : nn::named_state(module_)) state.push_back(item.tensor);
  broadcast_packed(group_, state, "module state");
}

// On the host, where the group reduces it without copies.
at::Tensor DataParallel::make_bucket(int64_t count, const at::Tensor& like) const {
  if (like.device().is_cpu()) return group_.allocate({count}, like.scalar_type()).zero_();
  return at::zeros({count}, like.options().requires_grad(false));
}

void DataParallel::make_buckets(const DataParallelOptions& options) {
  for (auto& members : assign_buckets(nn::trained_parameters(module_), options)) {
    int64_t count = 0;
    for (const auto& member : members) count += member.tensor.numel();
    Bucket& bucket = buckets_.emplace_back();
    bucket.flat = make_bucket(count, members.front().tensor);
    bucket.pending = members.size();
    int64_t at = 0;
    for (auto& member : members) {
      Slot& slot = bucket.slots.emplace_back();
      slot.name = std::move(member.name);
      slot.parameter = std::move(member.tensor);
      // An alias that autograd does not take for a view: LibTorch 1.13's Optimizer::zero_grad()
      // detaches gradients in place, which views refuse.
      slot.view = bucket.flat.narrow(0, at, slot.parameter.numel())
                      .view(slot.parameter.sizes())
                      .variable_data();
      at += slot.view.numel();
    }
  }
  // Only now do buckets and slots stay where they are in memory.
  for (auto& bucket : buckets_) {
    for (auto& slot : bucket.slots) {
      slot.hook = std::make_unique<compat::GradientHook>(
          slot.parameter, [this, &bucket, &slot] { on_ready(bucket, slot); });
    }
  }
}

void DataParallel::on_ready(Bucket& bucket, Slot& slot) {
  if (slot.ready) {
    throw Error("parallel", ErrorKind::usage,
                {.what = fmt::format("the gradient of {} was made twice in one step", slot.name),
                 .expected = "one backward pass, then finish_backward()"});
  }
  slot.ready = true;
  auto& gradient = slot.parameter.mutable_grad();
  if (gradient.data_ptr() != slot.view.data_ptr()) {
    const at::NoGradGuard no_grad;
    slot.view.copy_(gradient);
    gradient = slot.view;
  }
  --bucket.pending;
  launch_full_buckets();
}

// Strictly in order: ranks whose gradients arrive in another order would else pair wrongly.
void DataParallel::launch_full_buckets() {
  while (launched_ < buckets_.size() && buckets_[launched_].pending == 0) {
    Bucket& bucket = buckets_[launched_];
    const auto label = fmt::format("gradient bucket {}", launched_);
    bucket.work =
        group_.all_reduce(bucket.flat, comm::ReduceOp::average, {.label = label, .async_op = true});
    ++launched_;
  }
}

std::string DataParallel::missing_gradients() const {
  std::vector<std::string> names;
  for (const auto& bucket : buckets_) {
    for (const auto& slot : bucket.slots) {
      if (!slot.ready) names.push_back(slot.name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

void DataParallel::finish_backward() {
  if (launched_ < buckets_.size()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameters got no gradient in this backward pass",
                 .got = "none for " + missing_gradients(),
                 .expected = "every parameter to take part in the loss",
                 .hint = "call requires_grad_(false) on unused ones before DataParallel is made"});
  }
  for (auto& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
    bucket.pending = bucket.slots.size();
    for (auto& slot : bucket.slots) slot.ready = false;
  }
  launched_ = 0;
  if (broadcast_buffers_) broadcast_packed(group_, module_.buffers(), "module buffers");
}

}  // namespace troika::parallel
