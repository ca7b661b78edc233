#include "troika/parallel/buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"
#include "troika/layout/buckets.h"
#include "troika/optim/flat_parameters.h"

namespace troika::parallel {

int64_t bucket_kind(const at::Tensor& tensor) {
  // Types and devices fit into one byte each.
  const auto device = tensor.device();
  return (static_cast<int64_t>(tensor.scalar_type()) << 16) |
         (static_cast<int64_t>(device.type()) << 8) | static_cast<uint8_t>(device.index());
}

std::vector<std::vector<size_t>> assign_buckets(const std::vector<GradientSlot>& slots,
                                                const std::vector<size_t>& order,
                                                int64_t first_bytes, int64_t bytes) {
  std::vector<layout::BucketItem> items;
  for (const auto& slot : slots) {
    items.push_back({.bytes = static_cast<int64_t>(slot.parameter.nbytes()),
                     .kind = bucket_kind(slot.parameter)});
  }
  return layout::assign_buckets(items, order, first_bytes, bytes);
}

at::Tensor allocate_flat(const comm::Group& group, int64_t count, const at::Tensor& like) {
  return like.device().is_cpu() ? group.allocate({count}, like.scalar_type())
                                : at::empty({count}, like.options().requires_grad(false));
}

void open_bucket(const comm::Group& group, std::vector<GradientSlot>& slots, Bucket& bucket) {
  const auto flat = allocate_flat(group, bucket.count, slots[bucket.members.front()].parameter);
  bucket.gradient.flat = flat;
  int64_t end = 0;
  for (const size_t i : bucket.members) {
    GradientSlot& slot = slots[i];
    flat.narrow(0, end, slot.offset - end).zero_();
    end = slot.offset + slot.parameter.numel();
    // variable_data() makes an alias that autograd does not treat as a view: LibTorch 1.13's
    // Optimizer::zero_grad() detaches gradients in place, which fails for views.
    slot.view = optim::view_like(flat, slot.offset, slot.parameter).variable_data();
    bucket.gradient.parts.push_back(slot.view);
  }
  flat.narrow(0, end, bucket.count - end).zero_();
}

void close_bucket(std::vector<GradientSlot>& slots, Bucket& bucket) {
  bucket.gradient.flat.reset();
  bucket.gradient.parts.clear();
  for (const size_t i : bucket.members) slots[i].view.reset();
}

std::vector<Bucket> make_buckets(const comm::Group& group, std::vector<GradientSlot>& slots,
                                 const std::vector<std::vector<size_t>>& members, Keeps keeps,
                                 int64_t shard_multiple) {
  std::vector<Bucket> buckets;
  for (const auto& indices : members) {
    Bucket& bucket = buckets.emplace_back();
    bucket.gradient.index = static_cast<int64_t>(buckets.size()) - 1;
    bucket.label = fmt::format("gradient bucket {}", bucket.gradient.index);
    bucket.members = indices;
    for (const size_t i : indices) {
      bucket.gradient.names.push_back(slots[i].name);
      slots[i].bucket = buckets.size() - 1;
      slots[i].offset =
          layout::item_offset(bucket.count, slots[i].parameter.numel(), shard_multiple);
      bucket.count = slots[i].offset + slots[i].parameter.numel();
    }
    if (keeps != Keeps::all) {
      bucket.count = layout::padded_count(bucket.count, group.size(), shard_multiple);
    }
    if (keeps == Keeps::own_block_only) continue;
    open_bucket(group, slots, bucket);
    bucket.gradient.flat.zero_();
    if (keeps == Keeps::own_block) {
      const int64_t block = bucket.count / group.size();
      bucket.own_block = bucket.gradient.flat.narrow(0, group.rank() * block, block);
    }
    for (const size_t i : indices) {
      if (slots[i].parameter.grad().defined()) adopt_gradient(slots[i]);
    }
  }
  return buckets;
}

namespace {

// For small tensors, memcpy takes a few per cent of the instructions of at::copy_.
void copy_into(const at::Tensor& into, const at::Tensor& from) {
  constexpr size_t kSmall = 64 << 10;  // bytes; at::copy_ splits larger copies among threads
  const bool alike = from.layout() == at::kStrided && from.is_cpu() && into.is_cpu() &&
                     from.scalar_type() == into.scalar_type() && from.sizes() == into.sizes() &&
                     from.strides() == into.strides() && from.is_non_overlapping_and_dense();
  if (alike && from.nbytes() <= kSmall) {
    std::memcpy(into.data_ptr(), from.data_ptr(), from.nbytes());
  } else {
    into.copy_(from);
  }
}

}  // namespace

void adopt_gradient(GradientSlot& slot) {
  auto& gradient = slot.parameter.mutable_grad();
  if (!gradient.is_sparse() && gradient.data_ptr() == slot.view.data_ptr()) return;
  const at::NoGradGuard no_grad;
  copy_into(slot.view, gradient.is_sparse() ? gradient.to_dense() : gradient);
  gradient = slot.view;
}

}  // namespace troika::parallel
