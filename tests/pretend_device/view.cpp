#include "tests/pretend_device/operators.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>

#include <optional>

#include "tests/pretend_device/streams.h"

namespace troika::pretend {

View::View(const at::Tensor& tensor)
    : address_(static_cast<const char*>(tensor.data_ptr())),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      type_(tensor.scalar_type()),
      is_number_(tensor.unsafeGetTensorImpl()->is_wrapped_number()) {}

at::Tensor View::in_operator() const {
  const auto options = at::TensorOptions().dtype(type_);
  if (address_ == nullptr) return at::empty_strided(sizes_, strides_, options);
  auto result = at::from_blob(pretend::in_operator(address_), sizes_, strides_, options);
  if (is_number_) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

at::Tensor View::zeros() const {
  auto result = at::empty_strided(sizes_, strides_, at::TensorOptions().dtype(type_));
  result.zero_();
  if (is_number_) result.unsafeGetTensorImpl()->set_wrapped_number(true);
  return result;
}

Access View::access(bool writes) const {
  const size_t bytes = at::detail::computeStorageNbytes(sizes_, strides_, c10::elementSize(type_));
  return {address_, address_ + bytes, writes};
}

at::Tensor empty(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                 c10::Device device) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator(), kKeys, type);
}

void run_late(const std::string& name, const std::vector<at::Tensor>& reads,
              const std::vector<at::Tensor>& writes, std::function<void()> run) {
  std::vector<Access> accesses;
  std::optional<c10::Device> device;
  for (const auto* tensors : {&reads, &writes}) {
    for (const auto& tensor : *tensors) {
      if (!is_on_device(tensor)) continue;
      device = tensor.device();
      accesses.push_back(View(tensor).access(tensors == &writes));
    }
  }
  enqueue(current_stream(device.value().index()), name, accesses, std::move(run));
}

}  // namespace troika::pretend
