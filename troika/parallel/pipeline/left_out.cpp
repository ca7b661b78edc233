#include "troika/parallel/pipeline/left_out.h"

#include <algorithm>
#include <limits>

#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::parallel {

namespace {

// One element takes the place of all. It makes mistakes visible, unlike released memory, which
// would end the process.
at::Tensor placeholder(const at::Tensor& like, at::IntArrayRef sizes) {
  const auto one = at::empty({}, like.options().requires_grad(false));
  if (like.is_floating_point()) {
    one.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    one.zero_();
  }
  return one.expand(sizes);
}

}  // namespace

bool is_left_out(const at::Tensor& tensor) {
  return tensor.numel() > 1 &&
         tensor.storage().nbytes() == static_cast<size_t>(tensor.element_size());
}

bool lacks_tensors(const torch::nn::Module& module) {
  return std::ranges::any_of(nn::named_state(module),
                             [](const auto& entry) { return is_left_out(entry.second); });
}

void leave_out(const at::Tensor& tensor, at::IntArrayRef sizes) {
  tensor.mutable_grad().reset();
  tensor.set_data(placeholder(tensor, sizes));
}

void give_left_out_memory(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : nn::named_state(module)) {
    if (is_left_out(tensor)) tensor.set_data(tensor.detach().contiguous());
  }
}

LeftOut::LeftOut(torch::nn::Module& module, const std::set<std::string>& held,
                 compat::DeferredInit* values) {
  const at::NoGradGuard no_grad;
  const auto state = nn::named_state(module);
  if (values) {
    std::set<compat::DeferredInit::Key> keys;
    for (const auto& [name, tensor] : state) {
      if (held.contains(name)) keys.insert(compat::DeferredInit::key(tensor));
    }
    values->materialize([&](compat::DeferredInit::Key key, const at::Tensor& /*made*/) {
      return !keys.contains(key);
    });
  }
  for (const auto& [name, tensor] : state) {
    if (held.contains(name) || tensor.numel() == 0) continue;
    // The shard of a parameter may have no memory yet.
    const auto like =
        tensor.is_non_overlapping_and_dense() ? tensor : at::empty(tensor.sizes(), at::kMeta);
    tensors_.push_back({tensor, like.strides().vec()});
    tensor.set_data(placeholder(tensor, tensor.sizes()));
  }
}

void LeftOut::restore() {
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, strides] : tensors_) {
    tensor.set_data(
        at::empty_strided(tensor.sizes(), strides, tensor.options().requires_grad(false)));
  }
  tensors_.clear();
  is_restored_ = true;
}

}  // namespace troika::parallel
