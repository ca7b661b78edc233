#include "troika/train/memory/exchange_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "troika/base/error.h"
#include "troika/compat/autograd.h"  // of GradientSlot
#include "troika/compat/tensor_memory.h"
#include "troika/compat/torch.h"
#include "troika/layout/buckets.h"
#include "troika/nn/model.h"
#include "troika/nn/state.h"
#include "troika/parallel/block_parameters.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/replicas.h"
#include "troika/parallel/sharded.h"

namespace troika::train {

namespace {

using Members = std::vector<std::vector<size_t>>;

Members members_by_block(const nn::Model& model, const std::vector<parallel::GradientSlot>& slots) {
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < slots.size(); ++i) numbers.emplace(slots[i].name, i);
  Members result;
  for (const auto& names : parallel::buckets_of_blocks(model)) {
    auto& members = result.emplace_back();
    for (const auto& name : names) members.push_back(numbers.at(name));
  }
  return result;
}

}  // namespace

ExchangeMemory::ExchangeMemory(const torch::nn::Module& module, const ExchangeShape& shape,
                               const std::vector<size_t>& order)
    : shape_(shape) {
  std::vector<parallel::GradientSlot> slots;
  for (auto& parameter : nn::trained_parameters(module)) {
    auto& slot = slots.emplace_back();
    slot.name = parameter.first;
    slot.parameter = parameter.second;
    bytes_of_.push_back(static_cast<int64_t>(parameter.second.nbytes()));
    trained_bytes_ += bytes_of_.back();
  }
  for (const auto& entry : nn::named_state(module)) {
    other_bytes_ += static_cast<int64_t>(entry.second.nbytes());
  }
  other_bytes_ -= trained_bytes_;
  const auto assigned = [&](const std::vector<size_t>& by) {
    return parallel::assign_buckets(slots, by, shape_.first_bucket_bytes, shape_.bucket_bytes);
  };
  std::vector<size_t> first_order(slots.size());
  std::iota(first_order.rbegin(), first_order.rend(), 0);
  const auto* model = dynamic_cast<const nn::Model*>(&module);
  const bool by_block = shape_.stage == 3 && !shape_.gathers_at_once;
  TROIKA_CHECK(model || !by_block, "ZeRO 3 shares out the parameters of blocks");
  Members members = by_block ? members_by_block(*model, slots) : assigned(first_order);
  if (shape_.stage == 0 && shape_.reorders_buckets && !is_alone()) {
    auto later = assigned(order);
    buckets_change_ = members != later;
    members = std::move(later);
  }
  bucket_of_.resize(slots.size());
  for (const auto& indices : members) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.members = indices.size();
    for (const size_t i : indices) {
      bucket_of_[i] = buckets_.size() - 1;
      const int64_t count = slots[i].parameter.numel();
      bucket.count = layout::item_offset(bucket.count, count, shape_.shard_multiple) + count;
      bucket.element_bytes = static_cast<int64_t>(slots[i].parameter.element_size());
    }
    if (shape_.stage == 0) continue;
    bucket.count = layout::padded_count(bucket.count, shape_.ranks, shape_.shard_multiple);
    bucket.shared = shape_.stage == 3 && bucket.count >= parallel::ShardedOptions().keep_elements;
  }
  if (by_block) {
    std::map<std::string, size_t> places;
    for (size_t i = 0; i < slots.size(); ++i) places.emplace(slots[i].name, bucket_of_[i]);
    needs_ = parallel::buckets_needed(*model, places);
  }
  begin_pass();
}

int64_t ExchangeMemory::stepped() const {
  int64_t sum = 0;
  for (const auto& bucket : buckets_) sum += bucket.count;
  return shape_.stage == 0 ? sum : sum / shape_.ranks;
}

HeldBytes ExchangeMemory::validation() const {
  ExchangeMemory copy = *this;
  copy.begin_pass();
  copy.gather();
  copy.sum_all(is_alone());
  return copy.held();
}

HeldBytes ExchangeMemory::between_passes() const {
  auto result = validation();
  if (buckets_change_) result.buckets += result.gradients;
  return result;
}

ExchangeMemory::Start ExchangeMemory::start_without_values(double made) const {
  Start result{.peak = 0, .left = other_bytes_};
  int64_t small = 0, largest = 0;
  for (const int64_t bytes : bytes_of_) {
    small += bytes < compat::kLeastWithoutMemory ? bytes : 0;
    largest = std::max(largest, bytes);
  }
  for (const auto& bucket : buckets_) {
    const int64_t own = bucket.bytes() / shape_.ranks;
    result.peak = std::max(result.peak, result.left + bucket.bytes() + (bucket.shared ? own : 0));
    result.left += bucket.shared ? own : bucket.bytes();
  }
  const auto making = static_cast<int64_t>(made * static_cast<double>(largest));
  result.peak = small + std::max(result.peak, result.left + making);
  return result;
}

// Follows parallel::make_same(), Reducer and ParameterShards in turn.
ExchangeMemory::Start ExchangeMemory::start() const {
  const int64_t whole = trained_bytes_ + other_bytes_;
  const int64_t pack = shape_.ranks > 1 ? std::min(whole, parallel::kPackBytes) : 0;
  Start result{.peak = whole + pack, .left = whole};
  const auto take = [&](int64_t bytes) {
    result.left += bytes;
    result.peak = std::max(result.peak, result.left);
  };
  if (shape_.stage < 2 && !is_alone()) {
    for (const auto& bucket : buckets_) take(bucket.bytes());
  }
  if (shape_.stage == 0) return result;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const auto& bucket = buckets_[b];
    take(bucket.bytes());
    for (size_t i = 0; i < bytes_of_.size(); ++i) {
      if (bucket_of_[i] == b) take(-bytes_of_[i]);
    }
    if (!bucket.shared) continue;
    take(bucket.bytes() / shape_.ranks);
    take(-bucket.bytes());
  }
  return result;
}

void ExchangeMemory::begin_pass() {
  launched_ = 0;
  taken_ = 0;
  for (auto& bucket : buckets_) {
    bucket.whole = false;
    bucket.open = false;
    bucket.pending = bucket.members;
  }
  sum_all(shape_.accumulates && keeps_sums());
}

void ExchangeMemory::sum_all(bool all) {
  summed_.assign(bytes_of_.size(), all);
  summed_bytes_ = all ? trained_bytes_ : 0;
}

// Follows Reducer::open().
void ExchangeMemory::open(Bucket& bucket) {
  if (bucket.open) return;
  const auto count = [&] {
    return std::count_if(buckets_.begin(), buckets_.end(), [](const auto& b) { return b.open; });
  };
  while (taken_ < launched_ && count() >= 2) buckets_[taken_++].open = false;
  bucket.open = true;
}

void ExchangeMemory::accumulate(size_t parameter) {
  if (!keeps_sums() || summed_[parameter]) return;
  summed_[parameter] = true;
  summed_bytes_ += bytes_of_[parameter];
}

void ExchangeMemory::open_for(size_t parameter) {
  if (shape_.stage >= 2) open(buckets_[bucket_of_[parameter]]);
}

void ExchangeMemory::gradient(size_t parameter) {
  if (is_alone()) accumulate(parameter);
  if (shape_.stage < 2) return;
  open_for(parameter);
  if (summed_[parameter]) summed_bytes_ -= bytes_of_[parameter];
  summed_[parameter] = false;
  --buckets_[bucket_of_[parameter]].pending;
  while (launched_ < buckets_.size() && buckets_[launched_].pending == 0) ++launched_;
}

void ExchangeMemory::gather() {
  for (auto& bucket : buckets_) bucket.whole = bucket.shared;
}

void ExchangeMemory::finish() {
  for (auto& bucket : buckets_) bucket.whole = bucket.open = false;
  if (shape_.stage >= 2) sum_all(false);
}

// Follows BlockParameters::enter().
void ExchangeMemory::block(size_t index, int64_t next) {
  if (shape_.stage < 3) return;
  for (auto& bucket : buckets_) bucket.whole = false;
  const auto gather = [&](size_t of) {
    for (const size_t b : needs_[of]) buckets_[b].whole = buckets_[b].shared;
  };
  gather(index);
  if (next >= 0) gather(static_cast<size_t>(next));
}

HeldBytes ExchangeMemory::held() const {
  HeldBytes result{.parameters = other_bytes_, .gradients = summed_bytes_};
  for (const auto& bucket : buckets_) {
    const int64_t own = bucket.bytes() / shape_.ranks;
    result.parameters += bucket.shared ? own : bucket.bytes();
    if (!is_alone()) result.gradients += shape_.stage >= 2 ? own : bucket.bytes();
    if (bucket.whole) result.buckets += bucket.bytes();
    if (bucket.open) result.buckets += bucket.bytes();
  }
  return result;
}

}  // namespace troika::train
