#include "troika/parallel/reducer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/parallel/bucket_order.h"

namespace troika::parallel {

namespace {

std::vector<GradientSlot> slots_of(state::StateDict parameters) {
  std::vector<GradientSlot> slots(parameters.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].name = std::move(parameters[i].first);
    slots[i].parameter = std::move(parameters[i].second);
    slots[i].options = slots[i].parameter.options();
  }
  return slots;
}

}  // namespace

Reducer::Reducer(const comm::Group& group, state::StateDict parameters,
                 const ReducerOptions& options, BucketHook hook)
    : group_(group),
      options_(options),
      alone_(group.size() == 1 && options.keeps == Keeps::all && !hook),
      slots_(slots_of(std::move(parameters))),
      averages_(group_, options_, slots_, first_members(), std::move(hook)) {
  // If the set of gradients changes from step to step, their order changes as well: do not rebuild.
  rebuilt_ = !alone_ && (options_.keeps != Keeps::all || !options_.bucket_order.empty() ||
                         (options_.find_unused_parameters && !options_.static_graph));
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].hook =
        std::make_unique<compat::GradientHook>(slots_[i].parameter, [this, i] { on_gradient(i); });
  }
  begin_step();
}

Reducer::~Reducer() = default;

std::vector<std::vector<size_t>> Reducer::first_members() const {
  const auto order = first_order(slots_, options_.bucket_order);
  if (alone_) return {};
  if (!options_.buckets.empty()) return members_of(slots_, options_.buckets);
  return assign_buckets(slots_, order, options_.first_bucket_bytes, options_.bucket_bytes);
}

void Reducer::require_whole() const {
  if (!failed_) return;
  throw Error("parallel", ErrorKind::usage,
              {.what = "data parallelism was used after an error",
               .expected = "a new DataParallel, made by all ranks"});
}

void Reducer::set_factor(double factor) {
  require_whole();
  const auto fired = [](const GradientSlot& slot) { return slot.fired > 0; };
  if (averages_.launched() > 0 || (alone_ && std::any_of(slots_.begin(), slots_.end(), fired))) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "begin_step() was called in the middle of a step",
                 .got = "gradients that are averaged already",
                 .expected = "begin_step(), then backward, then finish_backward()"});
  }
  factor_ = factor;
}

void Reducer::continue_step() {
  for (GradientSlot& slot : slots_) slot.used = slot.parameter.grad().defined();
}

size_t Reducer::launched() const {
  const std::lock_guard lock(mutex_);
  return averages_.launched();
}

void Reducer::on_gradient(size_t index) {
  const std::lock_guard lock(mutex_);
  require_whole();
  try {
    take(index);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void Reducer::take(size_t index) {
  GradientSlot& slot = slots_[index];
  if (has_left_sums()) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "a backward pass before the end of the last step",
                 .got = "means that are missing",
                 .expected = "step(), then a forward pass of all blocks"});
  }
  slot.used = true;
  const bool adds_up_inside = !alone_ && options_.keeps != Keeps::own_block_only;
  if (adds_up_inside) fill(slot);
  if (!syncing_) return;
  if (++slot.fired == 1 && !rebuilt_ && !alone_) arrival_.push_back(index);
  if (options_.static_graph && !counted_) return;
  if (slot.fired > slot.expected) {
    throw Error(
        "parallel", ErrorKind::usage,
        {.what = fmt::format("the gradient of {} was made twice in one step", slot.name),
         .expected = "one backward pass, then finish_backward()",
         .hint = "was finish_backward() called after the last one? Use no_sync() for all but "
                 "the last backward pass of a step, or static_graph where one pass makes "
                 "it in parts"});
  }
  if (slot.fired < slot.expected) return;
  if (alone_) return;
  if (!adds_up_inside) fill(slot);
  Bucket& bucket = averages_.buckets()[slot.bucket];
  if (--bucket.pending == 0) averages_.mark_ready(bucket);
  averages_.launch_full(factor_, rebuilt_);
}

void Reducer::fill(GradientSlot& slot) {
  averages_.open(averages_.buckets()[slot.bucket]);
  adopt_gradient(slot);
  slot.filled = true;
  if (options_.keeps == Keeps::own_block_only) slot.parameter.mutable_grad().reset();
}

// A parameter without a gradient on this rank contributes zeros, or the content of its .grad.
void Reducer::fill_missing() {
  const bool counting = options_.static_graph && !counted_ && factor_ != 0;
  std::vector<std::string> missing;
  for (GradientSlot& slot : slots_) {
    if (counting) slot.expected = slot.fired;
    const bool only_added_up = slot.fired == 0 && slot.used;
    if (slot.fired != slot.expected && !only_added_up) missing.push_back(slot.name);
    if (alone_ || slot.filled || slot.bucket < averages_.launched()) continue;
    if (slot.parameter.grad().defined()) {
      fill(slot);
    } else {
      averages_.open(averages_.buckets()[slot.bucket]);
      slot.view.zero_();
    }
  }
  counted_ = counted_ || counting;
  const bool allowed = factor_ == 0 || (options_.find_unused_parameters && !options_.static_graph);
  if (allowed || missing.empty()) return;
  throw Error(
      "parallel", ErrorKind::usage,
      {.what = "parameters got no gradient in this backward pass",
       .got = "none for " + fmt::format("{}", fmt::join(missing, ", ")),
       .expected = "every parameter to take part in the loss",
       .hint =
           options_.static_graph
               ? "with static_graph every backward pass must make the gradients of the first one"
               : "set find_unused_parameters, or call requires_grad_(false) on unused ones "
                 "before DataParallel is made"});
}

// All-reduces a bitmap over slots by maximum. The bitmap is on the host, even if gradients are not.
std::vector<bool> Reducer::used_anywhere() {
  if (!options_.find_unused_parameters && !options_.static_graph) return {};
  if (!static_use_.empty()) return static_use_;
  const auto bitmap = at::zeros({static_cast<int64_t>(slots_.size())}, at::kByte);
  auto* bits = bitmap.data_ptr<uint8_t>();
  for (size_t i = 0; i < slots_.size(); ++i) bits[i] = slots_[i].used;
  group_.all_reduce(bitmap, comm::ReduceOp::max, {.label = "used parameters"});
  if (options_.copies) {
    options_.copies->all_reduce(bitmap, comm::ReduceOp::max, {.label = "used parameters"});
  }
  const std::vector<bool> used(bits, bits + slots_.size());
  if (options_.static_graph) static_use_ = used;
  return used;
}

void Reducer::take_results() {
  if (options_.leaves_sums && rebuilt_) left_sums_ = buckets().size();
  averages_.finish(!has_left_sums());
  const auto used = used_anywhere();
  for (size_t i = 0; i < slots_.size(); ++i) {
    GradientSlot& slot = slots_[i];
    slot.averaged = used.empty() || used[i];
    if (options_.keeps != Keeps::all || has_left_sums()) {
      slot.parameter.mutable_grad().reset();
    } else if (slot.averaged) {
      slot.parameter.mutable_grad() = slot.view;
    }
  }
}

void Reducer::give_mean(size_t bucket) {
  for (const size_t i : buckets()[bucket].members) {
    if (slots_[i].averaged) slots_[i].parameter.mutable_grad() = slots_[i].view;
  }
}

void Reducer::take_mean(size_t bucket) {
  for (const size_t i : buckets()[bucket].members) slots_[i].parameter.mutable_grad().reset();
  --left_sums_;
}

void Reducer::finish_alone() {
  for (GradientSlot& slot : slots_) {
    auto& gradient = slot.parameter.mutable_grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    if (factor_ != 1) gradient.mul_(factor_);
  }
}

void Reducer::begin_step() {
  for (auto& bucket : averages_.buckets()) bucket.pending = 0;
  for (GradientSlot& slot : slots_) {
    slot.fired = 0;
    slot.used = false;
    slot.filled = false;
    if (slot.expected > 0 && !alone_) ++averages_.buckets()[slot.bucket].pending;
  }
  averages_.begin_step();
  factor_ = 1;
}

void Reducer::finish() {
  if (!syncing_) {
    throw Error("parallel", ErrorKind::usage,
                {.what = "finish_backward() was called inside no_sync()",
                 .hint = "it ends the step, after the last backward pass"});
  }
  require_whole();
  failed_ = true;  // reset at the end
  const at::NoGradGuard no_grad;
  fill_missing();
  if (alone_) {
    finish_alone();
  } else {
    for (auto& bucket : averages_.buckets()) {
      if (std::exchange(bucket.pending, 0) > 0) averages_.mark_ready(bucket);
    }
    averages_.launch_full(factor_, rebuilt_);
    take_results();
    rebuild();
  }
  begin_step();
  failed_ = false;
}

// Once, after the first step: broadcasts rank 0's order of arrival and rebuilds the buckets in this
// order.
void Reducer::rebuild() {
  if (std::exchange(rebuilt_, true)) return;
  std::vector<size_t> order = std::exchange(arrival_, {});
  for (const auto& bucket : averages_.buckets()) {
    for (const size_t i : bucket.members) {
      if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
    }
  }
  const auto agreed = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  std::copy(order.begin(), order.end(), agreed.data_ptr<int64_t>());
  group_.broadcast(agreed, 0, {.label = "bucket order"});
  std::copy_n(agreed.data_ptr<int64_t>(), order.size(), order.begin());
  const auto members =
      assign_buckets(slots_, order, options_.first_bucket_bytes, options_.bucket_bytes);
  const auto& buckets = averages_.buckets();
  const bool same = std::equal(buckets.begin(), buckets.end(), members.begin(), members.end(),
                               [](const Bucket& a, const auto& b) { return a.members == b; });
  if (!same) averages_.rebuild(members);
}

void Reducer::check_unchanged(const state::StateDict& parameters) const {
  for (size_t i = 0; i < std::max(slots_.size(), parameters.size()); ++i) {
    const bool same = i < slots_.size() && i < parameters.size() &&
                      parameters[i].second.is_same(slots_[i].parameter) &&
                      parameters[i].second.dtype() == slots_[i].options.dtype() &&
                      parameters[i].second.device() == slots_[i].options.device();
    if (same) continue;
    const std::string got = i < parameters.size() ? parameters[i].first : "none";
    throw Error("parallel", ErrorKind::usage,
                {.what = "parameters were frozen, unfrozen, added, replaced or cast",
                 .got = fmt::format("{} as number {} that requires a gradient", got, i),
                 .expected = i < slots_.size() ? slots_[i].name : "none",
                 .hint = "call refresh() after such a change, on all ranks"});
  }
}

std::vector<at::Tensor> Reducer::gradients() const {
  std::vector<at::Tensor> result;
  for (const auto& bucket : averages_.buckets()) result.push_back(bucket.gradient.flat);
  if (!alone_) return result;
  for (const GradientSlot& slot : slots_) {
    const auto& gradient = slot.parameter.grad();
    if (gradient.defined()) result.push_back(gradient);
  }
  return result;
}

std::vector<std::string> Reducer::order() const {
  std::vector<std::string> names;
  for (const auto& bucket : averages_.buckets()) {
    for (const size_t i : bucket.members) names.push_back(slots_[i].name);
  }
  return names;
}

}  // namespace troika::parallel
