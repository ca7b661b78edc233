// Devices other than the CPU, of any type that LibTorch supports, accessed through the guards,
// streams and events that each type registers with LibTorch.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>

namespace torch::nn {
class Module;
}

namespace troika::compat {

// Returns PrivateUse1 if a device of that type is registered with LibTorch, otherwise CUDA.
c10::DeviceType accelerator_type();
// Returns how many devices of that type this process sees.
int accelerator_count();

// Returns the random number generator that operators on `device` use. Throws c10::Error if there is
// no such device.
at::Generator default_generator(c10::Device device);
// Tells default_generator() where to find the generators of a device type that LibTorch 1.13 does
// not support. Call once, before any thread uses default_generator(). From LibTorch 2.6 on, also
// registers the hooks without which LibTorch refuses to use a device of type PrivateUse1.
void set_default_generators(c10::DeviceType type, std::function<at::Generator(int)> of_device);

// Like tensor.set_data(with), whose check does not accept PrivateUse1 as a device with dense
// tensors.
void replace_data(const at::Tensor& tensor, const at::Tensor& with);

// Like module.to(device, type), but also supports PrivateUse1, to which LibTorch 1.13 does not move
// tensors in place. Integers keep their type.
void move_module(torch::nn::Module& module, c10::Device device, c10::ScalarType type);

// Seeds the generators of the CPU and of all other devices.
void manual_seed(uint64_t seed);

// Returns options for the host memory through which `tensor` is copied to and from its device: the
// same dtype, and page-locked for CUDA, because only copies of page-locked memory are asynchronous.
c10::TensorOptions staging_options(const at::Tensor& tensor);

}  // namespace troika::compat
