// The operators that the pretend device implements itself: memory, views, copies, and operators
// that have other names on devices than on the CPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include <cstring>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "tests/pretend_device/operators.h"
#include "tests/pretend_device/streams.h"

namespace troika::pretend {

namespace {

using OptionalType = c10::optional<at::ScalarType>;
using OptionalLayout = c10::optional<at::Layout>;
using OptionalDevice = c10::optional<c10::Device>;
using OptionalBool = c10::optional<bool>;

c10::Device device_or_current(const OptionalDevice& device) {
  if (device && device->has_index()) return *device;
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device())};
}

at::Tensor empty_memory_format(at::IntArrayRef sizes, OptionalType type, OptionalLayout,
                               OptionalDevice device, OptionalBool pinned,
                               c10::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "pretend device: only memory of the host is page-locked");
  const c10::OptionalDeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, &allocator(), kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, OptionalType type,
                         OptionalLayout, OptionalDevice device, OptionalBool) {
  return empty(sizes, strides, c10::dtype_or_default(type), device_or_current(device));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      c10::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes,
                         c10::optional<at::MemoryFormat> format) {
  auto* const tensor = self.unsafeGetTensorImpl();
  const auto wanted = at::detail::computeStorageNbytesContiguous(
      sizes, self.dtype().itemsize(), static_cast<size_t>(self.storage_offset()));
  if (wanted > self.storage().nbytes()) {
    const auto larger = empty({static_cast<int64_t>(wanted)}, {1}, at::kByte, self.device());
    const auto old =
        at::empty({0}, self.options().dtype(at::kByte))
            .set_(self.storage(), 0, {static_cast<int64_t>(self.storage().nbytes())}, {1});
    larger.narrow(0, 0, old.numel()).copy_(old);
    auto* const storage = self.storage().unsafeGetStorageImpl();
    storage->set_data_ptr(larger.storage().unsafeGetStorageImpl()->set_data_ptr({}));
    storage->set_nbytes(wanted);
  }
  tensor->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) tensor->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {count}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

uint64_t sum_of_bytes(const at::Tensor& host) {
  const at::Tensor dense = host.contiguous();
  uint64_t sum = 1469598103934665603u;  // FNV-1a
  const auto* bytes = static_cast<const unsigned char*>(dense.data_ptr());
  for (size_t i = 0; i < dense.nbytes(); ++i) sum = (sum ^ bytes[i]) * 1099511628211u;
  return sum;
}

// The copies to and from host memory that have not run yet. Guarded by the device's mutex.
class HostCopies {
 public:
  // Whether a copy reads the memory of `host`, or writes it if `writes`. Throws std::logic_error if
  // such a copy is not ordered before a copy that is queued on `stream` now.
  bool has(const at::Tensor& host, bool writes, int stream, bool now_writes) {
    const Access access = View(host).access(now_writes);
    const Clock now = mark(stream).clock;
    std::erase_if(copies_, [](const Copy& copy) { return is_done_already(copy.mark); });
    bool found = false;
    for (const Copy& copy : copies_) {
      if (copy.access.begin >= access.end || access.begin >= copy.access.end) continue;
      const int other = copy.mark.stream;
      const bool is_ordered = other == stream || copy.mark.clock[other] <= now[other];
      if (!is_ordered && (now_writes || copy.access.writes)) {
        throw std::logic_error("pretend device: nothing orders two copies of the host's memory");
      }
      found = found || copy.access.writes == writes;
    }
    return found;
  }
  void add(const at::Tensor& host, bool writes, int stream) {
    copies_.push_back({View(host).access(writes), mark(stream)});
  }

 private:
  struct Copy {
    Access access;
    Mark mark;
  };
  std::vector<Copy> copies_;
};

HostCopies& host_copies() {
  static auto* const result = new HostCopies;
  return *result;
}

// Returns the tensor for a copy that runs later. LibTorch keeps host memory of its own allocators
// until the device has copied it. Other memory stays its owner's, who may write to it or free it.
at::Tensor kept_for_copy(const at::Tensor& host) {
  static const auto of_an_owner = c10::InefficientStdFunctionContext::makeDataPtr(
                                      nullptr, [](void*) {}, c10::kCPU)
                                      .get_deleter();
  if (host.storage().data_ptr().get_deleter() != of_an_owner) return host.detach();
  return at::from_blob(host.data_ptr(), host.sizes(), host.strides(),
                       at::TensorOptions().dtype(host.scalar_type()));
}

// The host's memory is read when the stream runs the copy, as with page-locked memory.
void from_host(const at::Tensor& host, const at::Tensor& into, bool late) {
  const std::lock_guard lock(device_mutex());
  const int stream = current_stream(into.device().index());
  const bool is_to_come = host_copies().has(host, /*writes=*/true, stream, /*now_writes=*/false);
  const auto sum = is_to_come ? std::nullopt : std::optional(sum_of_bytes(host));
  run_late("copy from the host", {}, {into}, [host = kept_for_copy(host), sum, view = View(into)] {
    if (sum && sum_of_bytes(host) != *sum) {
      throw std::runtime_error("the host wrote to memory before it had been copied");
    }
    view.in_operator().copy_(host);
  });
  host_copies().add(host, /*writes=*/false, stream);
  if (!late) wait_on_host(stream);
}

// Until the stream runs the copy, the host's memory has NaNs.
void to_host(const at::Tensor& from, const at::Tensor& host, bool late) {
  const std::lock_guard lock(device_mutex());
  const int stream = current_stream(from.device().index());
  const bool is_read = host_copies().has(host, /*writes=*/false, stream, /*now_writes=*/true);
  if (late && !is_read && host.is_non_overlapping_and_dense()) {
    std::memset(host.data_ptr(), 0xff, host.nbytes());
  }
  run_late("copy to the host", {from}, {},
           [host = host.detach(), view = View(from)] { host.copy_(view.in_operator()); });
  host_copies().add(host, /*writes=*/true, stream);
  if (!late) wait_on_host(stream);
}

// Copies on the stream of `from`; the streams of both devices wait for each other, as with CUDA.
void between(const at::Tensor& from, const at::Tensor& into) {
  const int source = current_stream(from.device().index());
  const int target = current_stream(into.device().index());
  wait_on_stream(source, mark(target));
  enqueue(source, "copy", {View(from).access(false), View(into).access(true)},
          [from = View(from), into = View(into)] { into.in_operator().copy_(from.in_operator()); });
  wait_on_stream(target, mark(source));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& into, bool late) {
  const at::Tensor source = from.expand_as(into);
  if (!is_on_device(from)) {
    from_host(source, into, late);
  } else if (!is_on_device(into)) {
    to_host(source, into, late);
  } else {
    between(source, into);
  }
  return into;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& into) {
  into.resize_(from.sizes());
  return copy_from(from, into, /*late=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  to_host(self.reshape({}), host, /*late=*/false);
  return host.item();
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  use_on(self.storage().data_ptr().get(), stream_number(stream.device_index(), stream.id()));
}

// The CPU of LibTorch 1.13 has no convolutions of halves.
at::Tensor widened(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kHalf ? tensor.to(at::kFloat) : tensor;
}

at::Tensor convolve(const at::Tensor& input, const at::Tensor& weight,
                    const c10::optional<at::Tensor>& bias, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                    at::IntArrayRef output_padding, int64_t groups) {
  const bool has_bias = bias && bias->defined();
  const auto run = [=, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                    output_padding = output_padding.vec()](const at::Tensor& x, const at::Tensor& w,
                                                           const at::Tensor& b) {
    return at::convolution(widened(x), widened(w),
                           b.defined() ? c10::optional<at::Tensor>(widened(b)) : c10::nullopt,
                           stride, padding, dilation, transposed, output_padding, groups);
  };
  const View x(input), w(weight);
  const auto b = has_bias ? std::optional(View(*bias)) : std::nullopt;
  at::Tensor trial;
  on_device_thread([&] { trial = run(x.zeros(), w.zeros(), b ? b->zeros() : at::Tensor()); });
  auto result = empty(trial.sizes(), trial.strides(), input.scalar_type(), input.device());
  std::vector<at::Tensor> reads{input, weight};
  if (has_bias) reads.push_back(*bias);
  run_late("convolution", reads, {result}, [run, x, w, b, y = View(result)] {
    y.in_operator().copy_(
        run(x.in_operator(), w.in_operator(), b ? b->in_operator() : at::Tensor()));
  });
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const int64_t channels = gradient.size(1);
  const auto run = [=, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                    output_padding = output_padding.vec()](const at::Tensor& g, const at::Tensor& x,
                                                           const at::Tensor& w) {
    const std::vector<int64_t> bias{channels};
    return at::convolution_backward(widened(g), widened(x), widened(w), at::IntArrayRef(bias),
                                    stride, padding, dilation, transposed, output_padding, groups,
                                    wanted);
  };
  const View g(gradient), x(input), w(weight);
  std::tuple<at::Tensor, at::Tensor, at::Tensor> trial;
  on_device_thread([&] { trial = run(g.zeros(), x.zeros(), w.zeros()); });
  std::vector<at::Tensor> writes;
  const auto make = [&](const at::Tensor& like) {
    if (!like.defined()) return at::Tensor();
    writes.push_back(empty(like.sizes(), like.strides(), input.scalar_type(), input.device()));
    return writes.back();
  };
  auto of_input = make(std::get<0>(trial));
  auto of_weight = make(std::get<1>(trial));
  auto of_bias = make(std::get<2>(trial));
  std::vector<View> made(writes.begin(), writes.end());
  run_late("convolution_backward", {gradient, input, weight}, writes, [run, g, x, w, made] {
    const auto [a, b, c] = run(g.in_operator(), x.in_operator(), w.in_operator());
    auto next = made.begin();
    for (const auto& value : {a, b, c}) {
      if (value.defined()) (next++)->in_operator().copy_(value);
    }
  });
  return {of_input, of_weight, of_bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty_memory_format);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("unfold", unfold);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", local_scalar_dense);
  library.impl("record_stream", record_stream);
  library.impl("convolution_overrideable", convolve);
  library.impl("convolution_backward_overrideable", convolve_backward);
}

}  // namespace

}  // namespace troika::pretend
