// Implements LibTorch's interfaces to guards, streams and events of the pretend device.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tests/pretend_device/pretend_device.h"
#include "tests/pretend_device/streams.h"
#include "troika/compat/torch.h"

namespace troika::pretend {

namespace {

c10::Device device_at(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream_of(int number) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(number / kStreamsEach), number % kStreamsEach);
}

int number_of(const c10::Stream& stream) {
  return stream_number(stream.device_index(), stream.id());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return device_at(exchange_device(index_of(device)));
  }
  c10::Device getDevice() const override { return device_at(current_device()); }
  void setDevice(c10::Device device) const override { exchange_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_device(index_of(device));
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return stream_of(current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(stream_number(index_of(device), 0));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_of(stream_from_pool(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    return stream_of(exchange_stream(number_of(stream)));
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Mark;
    *static_cast<Mark*>(*event) = mark(number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_on_stream(number_of(stream), *static_cast<Mark*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || is_done(*static_cast<Mark*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const c10::Stream& stream) const override {
    return is_done(mark(number_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    wait_on_host(number_of(stream));
  }
#if TROIKA_TORCH_VERSION >= 203
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait_on_host(*static_cast<Mark*>(event));
  }
#endif
#if TROIKA_TORCH_VERSION >= 206
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    wait_on_host_for_device(device);
  }
#endif
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    use_on(data.get(), number_of(stream));
  }

 private:
  static int index_of(const c10::Device& device) {
    return device.has_index() ? device.index() : current_device();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace

}  // namespace troika::pretend
