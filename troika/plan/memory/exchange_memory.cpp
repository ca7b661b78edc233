#include "troika/plan/memory/exchange_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/buckets.h"

namespace troika::plan {

namespace {

std::vector<std::vector<size_t>> assigned(const ExchangedState& state, const ExchangeShape& shape,
                                          const std::vector<size_t>& by) {
  std::vector<layout::BucketItem> items;
  for (const auto& one : state.trained) items.push_back({.bytes = one.bytes(), .kind = one.kind});
  return layout::assign_buckets(items, by, shape.first_bucket_bytes, shape.bucket_bytes);
}

}  // namespace

ExchangeMemory::ExchangeMemory(ExchangedState state, const ExchangeShape& shape,
                               const std::vector<size_t>& order)
    : shape_(shape), state_(std::move(state)), bucket_of_(state_.trained.size()) {
  for (const auto& one : state_.trained) trained_bytes_ += one.bytes();
  const bool by_block = shape_.stage == 3 && !shape_.gathers_at_once;
  TROIKA_CHECK(!state_.of_blocks.empty() || !by_block,
               "ZeRO 3 shares out the parameters of blocks");
  std::vector<size_t> first_order(state_.trained.size());
  std::iota(first_order.rbegin(), first_order.rend(), 0);
  auto members = by_block ? state_.of_blocks : assigned(state_, shape_, first_order);
  if (shape_.stage == 0 && shape_.reorders_buckets && !is_alone()) {
    auto later = assigned(state_, shape_, order);
    buckets_change_ = members != later;
    members = std::move(later);
  }
  for (const auto& indices : members) add_bucket(indices);
  always_held_.parameters = state_.other_bytes;
  for (const auto& bucket : buckets_) {
    const int64_t own = bucket.bytes() / shape_.ranks;
    always_held_.parameters += bucket.shared ? own : bucket.bytes();
    if (!is_alone()) always_held_.gradients += shape_.stage >= 2 ? own : bucket.bytes();
  }
  begin_pass();
}

void ExchangeMemory::add_bucket(const std::vector<size_t>& members) {
  Bucket& bucket = buckets_.emplace_back();
  bucket.members = members.size();
  for (const size_t i : members) {
    bucket_of_[i] = buckets_.size() - 1;
    const auto& one = state_.trained[i];
    bucket.count =
        layout::item_offset(bucket.count, one.elements, shape_.shard_multiple) + one.elements;
    bucket.element_bytes = one.element_bytes;
  }
  if (shape_.stage == 0) return;
  if (shape_.pads_buckets) {
    bucket.count = layout::padded_count(bucket.count, shape_.ranks, shape_.shard_multiple);
  }
  bucket.shared = shape_.stage == 3 && bucket.count >= shape_.keep_elements;
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

ExchangeMemory::Start ExchangeMemory::start_without_values(double made,
                                                           int64_t least_without) const {
  Start result{.peak = 0, .left = state_.other_bytes};
  int64_t small = 0, largest = 0;
  for (const auto& one : state_.trained) {
    small += one.bytes() < least_without ? one.bytes() : 0;
    largest = std::max(largest, one.bytes());
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
ExchangeMemory::Start ExchangeMemory::start(int64_t pack_bytes) const {
  const int64_t pack = shape_.ranks > 1 ? std::min(whole(), pack_bytes) : 0;
  Start result{.peak = whole() + pack, .left = whole()};
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
    for (size_t i = 0; i < bucket_of_.size(); ++i) {
      if (bucket_of_[i] == b) take(-state_.trained[i].bytes());
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
    set_whole(bucket, false);
    set_open(bucket, false);
    bucket.pending = bucket.members;
  }
  sum_all(shape_.accumulates && keeps_sums());
}

void ExchangeMemory::sum_all(bool all) {
  summed_.assign(state_.trained.size(), all);
  summed_bytes_ = all ? trained_bytes_ : 0;
}

// Follows Reducer::open().
void ExchangeMemory::open(Bucket& bucket) {
  if (bucket.open) return;
  while (taken_ < launched_ && open_buckets_ >= 2) set_open(buckets_[taken_++], false);
  set_open(bucket, true);
}

void ExchangeMemory::set_whole(Bucket& bucket, bool value) {
  if (bucket.whole == value) return;
  bucket.whole = value;
  whole_and_open_bytes_ += value ? bucket.bytes() : -bucket.bytes();
}

void ExchangeMemory::set_open(Bucket& bucket, bool value) {
  if (bucket.open == value) return;
  bucket.open = value;
  whole_and_open_bytes_ += value ? bucket.bytes() : -bucket.bytes();
  open_buckets_ += value ? 1 : -1;
}

void ExchangeMemory::accumulate(size_t parameter) {
  if (!keeps_sums() || summed_[parameter]) return;
  summed_[parameter] = true;
  summed_bytes_ += state_.trained[parameter].bytes();
}

void ExchangeMemory::open_for(size_t parameter) {
  if (shape_.stage >= 2) open(buckets_[bucket_of_[parameter]]);
}

void ExchangeMemory::gradient(size_t parameter) {
  if (is_alone()) accumulate(parameter);
  if (shape_.stage < 2) return;
  open_for(parameter);
  if (summed_[parameter]) summed_bytes_ -= state_.trained[parameter].bytes();
  summed_[parameter] = false;
  --buckets_[bucket_of_[parameter]].pending;
  while (launched_ < buckets_.size() && buckets_[launched_].pending == 0) ++launched_;
}

void ExchangeMemory::gather() {
  for (auto& bucket : buckets_) set_whole(bucket, bucket.shared);
}

void ExchangeMemory::finish() {
  for (auto& bucket : buckets_) {
    set_whole(bucket, false);
    set_open(bucket, false);
  }
  if (shape_.stage >= 2) sum_all(false);
}

// Follows BlockParameters::enter().
void ExchangeMemory::block(size_t index, int64_t next) {
  if (shape_.stage < 3) return;
  for (auto& bucket : buckets_) set_whole(bucket, false);
  const auto gather = [&](size_t of) {
    for (const size_t b : state_.needs[of]) set_whole(buckets_[b], buckets_[b].shared);
  };
  gather(index);
  if (next >= 0) gather(static_cast<size_t>(next));
}

HeldBytes ExchangeMemory::held() const {
  return {.parameters = always_held_.parameters,
          .gradients = always_held_.gradients + summed_bytes_,
          .buckets = whole_and_open_bytes_};
}

}  // namespace troika::plan
