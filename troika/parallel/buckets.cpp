#include "troika/parallel/buckets.h"

#include <algorithm>

#include "troika/compat/autograd.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

std::vector<std::vector<size_t>> assign_buckets(const std::vector<Slot>& slots,
                                                const std::vector<size_t>& order,
                                                int64_t first_bytes, int64_t bytes) {
  struct Open {
    c10::ScalarType type;
    c10::Device device;
    size_t index;
    int64_t bytes;
  };
  std::vector<std::vector<size_t>> buckets;
  std::vector<Open> open;
  for (const size_t i : order) {
    const at::Tensor& tensor = slots[i].parameter;
    auto bucket = std::find_if(open.begin(), open.end(), [&](const Open& o) {
      return o.type == tensor.scalar_type() && o.device == tensor.device();
    });
    if (bucket == open.end()) {
      bucket = open.insert(open.end(), {tensor.scalar_type(), tensor.device(), buckets.size(), 0});
      buckets.emplace_back();
    }
    bucket->bytes += static_cast<int64_t>(tensor.nbytes());
    buckets[bucket->index].push_back(i);
    if (bucket->bytes >= (bucket->index == 0 ? first_bytes : bytes)) open.erase(bucket);
  }
  return buckets;
}

std::vector<Bucket> make_buckets(const comm::Group& group, std::vector<Slot>& slots,
                                 const std::vector<std::vector<size_t>>& members) {
  std::vector<Bucket> buckets;
  for (const auto& indices : members) {
    int64_t count = 0;
    for (const size_t i : indices) count += slots[i].parameter.numel();
    const at::Tensor& like = slots[indices.front()].parameter;
    const auto flat = like.device().is_cpu()
                          ? group.allocate({count}, like.scalar_type()).zero_()
                          : at::zeros({count}, like.options().requires_grad(false));
    Bucket& bucket = buckets.emplace_back();
    bucket.gradient.index = static_cast<int64_t>(buckets.size()) - 1;
    bucket.gradient.flat = flat;
    bucket.members = indices;
    int64_t at = 0;
    for (const size_t i : indices) {
      Slot& slot = slots[i];
      // An alias that autograd does not take for a view: LibTorch 1.13's Optimizer::zero_grad()
      // detaches gradients in place, which views refuse.
      slot.view =
          flat.narrow(0, at, slot.parameter.numel()).view(slot.parameter.sizes()).variable_data();
      slot.bucket = buckets.size() - 1;
      if (slot.parameter.grad().defined()) adopt_gradient(slot);
      bucket.gradient.parts.push_back(slot.view);
      at += slot.view.numel();
    }
  }
  return buckets;
}

void adopt_gradient(Slot& slot) {
  auto& gradient = slot.parameter.mutable_grad();
  if (!gradient.is_sparse() && gradient.data_ptr() == slot.view.data_ptr()) return;
  const at::NoGradGuard no_grad;
  slot.view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
  gradient = slot.view;
}

}  // namespace troika::parallel
