#include "troika/parallel/parameter_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "troika/base/error.h"
#include "troika/compat/storage.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

ParameterShards::ParameterShards(const comm::Group& group, const std::vector<GradientSlot>& slots,
                                 const std::vector<Bucket>& buckets,
                                 const std::vector<bool>& releasable, compat::DeferredInit* values,
                                 const std::vector<at::Tensor>& kept)
    : group_(*group.split(0)), slots_(slots), buckets_(buckets), flats_(buckets.size()) {
  const at::NoGradGuard no_grad;
  std::map<compat::DeferredInit::Key, size_t> to_come;  // indices of slots
  for (size_t b = 0; b < buckets.size(); ++b) {
    Flat& flat = flats_[b];
    const int64_t block = buckets[b].count / group.size();
    const at::Tensor& like = slots[buckets[b].members.front()].parameter;
    flat.whole = allocate_flat(group_, buckets[b].count, like);
    // Writing zeros would allocate the whole bucket, which deferred values must avoid.
    if (!values || !releasable[b]) flat.whole.zero_();
    for (const size_t i : buckets[b].members) {
      at::Tensor parameter = slots[i].parameter;
      const auto view =
          flat.whole.narrow(0, slots[i].offset, parameter.numel()).view(parameter.sizes());
      if (values && values->has(parameter)) {
        to_come.emplace(compat::DeferredInit::key(parameter), i);
      } else {
        view.copy_(parameter.detach());
      }
      parameter.set_data(view);
    }
    flat.own = flat.whole.narrow(0, group.rank() * block, block);
    flat.label = fmt::format("parameter bucket {}", b);
    flat.releasable = releasable[b];
    if (!flat.releasable) continue;
    const auto part = flat.own;
    flat.own = allocate_flat(group_, block, like);
    if (values) {
      flat.own.zero_();
    } else {
      flat.own.copy_(part);
    }
    release(b);
  }
  make_shards();
  if (values) take_values(*values, to_come, kept);
}

void ParameterShards::take_values(compat::DeferredInit& values,
                                  const std::map<compat::DeferredInit::Key, size_t>& slots,
                                  const std::vector<at::Tensor>& kept) {
  std::set<compat::DeferredInit::Key> keeps;
  for (const auto& tensor : kept) keeps.insert(compat::DeferredInit::key(tensor));
  values.materialize([&](compat::DeferredInit::Key key, const at::Tensor& made) {
    const auto found = slots.find(key);
    if (found == slots.end()) return !keeps.contains(key);
    const GradientSlot& slot = slots_[found->second];
    const Flat& flat = flats_[slot.bucket];
    if (!flat.releasable) {
      flat.whole.narrow(0, slot.offset, made.numel()).copy_(made);
      return true;
    }
    const int64_t first = group_.rank() * flat.own.numel();
    const int64_t begin = std::max(first, slot.offset);
    const int64_t end = std::min(first + flat.own.numel(), slot.offset + made.numel());
    if (begin < end) {
      flat.own.narrow(0, begin - first, end - begin)
          .copy_(made.narrow(0, begin - slot.offset, end - begin));
    }
    return true;
  });
}

void ParameterShards::make_shards() {
  for (const GradientSlot& slot : slots_) {
    const Flat& flat = flats_[slot.bucket];
    const int64_t block = flat.own.numel();
    const int64_t first = group_.rank() * block;
    const int64_t last = slot.offset + slot.parameter.numel();
    const int64_t begin = std::clamp(first, slot.offset, last);
    const int64_t count = std::clamp(first + block, slot.offset, last) - begin;
    std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(1, slot.parameter.dim())), 1);
    shape.back() = count;
    const int64_t at = count > 0 ? begin - first : 0;
    shards_.push_back({slot.name, flat.own.narrow(0, at, count).view(shape), /*decay=*/true,
                       layout::Box::range(slot.name, slot.parameter.sizes().vec(),
                                          {begin - slot.offset, begin - slot.offset + count})});
  }
}

void ParameterShards::take_gradients() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    auto& tensor = shards_[i].tensor;
    if (!slots_[i].averaged) {
      tensor.mutable_grad().reset();
      continue;
    }
    const auto& block = buckets_[slots_[i].bucket].own_block;
    const int64_t at = tensor.numel() > 0
                           ? tensor.storage_offset() - flats_[slots_[i].bucket].own.storage_offset()
                           : 0;
    tensor.mutable_grad() =
        block.narrow(0, at, tensor.numel()).view(tensor.sizes()).variable_data();
  }
}

void ParameterShards::start(Flat& flat) {
  flat.work = group_.all_gather(flat.whole, flat.own, {}, {.label = flat.label, .async_op = true});
}

void ParameterShards::start_gather(size_t bucket) {
  Flat& flat = flats_[bucket];
  if (flat.is_whole) return;
  compat::give_memory(flat.whole, allocate_flat(group_, buckets_[bucket].count, flat.own));
  flat.is_whole = true;
  start(flat);
}

void ParameterShards::wait(size_t bucket) {
  Flat& flat = flats_[bucket];
  if (flat.work) flat.work->wait();
  flat.work.reset();
}

void ParameterShards::release(size_t bucket) {
  wait(bucket);
  Flat& flat = flats_[bucket];
  if (flat.is_whole) compat::release_memory(flat.whole);
  flat.is_whole = false;
}

void ParameterShards::gather_all() {
  for (size_t b = 0; b < flats_.size(); ++b) start_gather(b);
  for (size_t b = 0; b < flats_.size(); ++b) wait(b);
}

void ParameterShards::release_all() {
  for (size_t b = 0; b < flats_.size(); ++b) {
    if (flats_[b].releasable) release(b);
  }
}

void ParameterShards::take_parameters() {
  const at::NoGradGuard no_grad;
  for (Flat& flat : flats_) {
    if (flat.releasable && flat.is_whole) {
      const int64_t block = flat.own.numel();
      flat.own.copy_(flat.whole.narrow(0, group_.rank() * block, block));
    }
  }
}

void ParameterShards::refresh() {
  for (size_t b = 0; b < flats_.size(); ++b) {
    if (flats_[b].is_whole) start(flats_[b]);
  }
  for (size_t b = 0; b < flats_.size(); ++b) wait(b);
}

}  // namespace troika::parallel
