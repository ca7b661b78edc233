// Devices beside the CPU, of whatever type LibTorch has them: asked through the guards, streams and
// events that each type registers with LibTorch.
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

// PrivateUse1 where a device of that type is registered with LibTorch, else CUDA.
c10::DeviceType accelerator_type();
// How many devices of that type this process sees; 0 if there are none.
int accelerator_count();

// The generator of random numbers that operators on `device` draw from. Throws c10::Error where
// there is no such device.
at::Generator default_generator(c10::Device device);
// Says where default_generator() finds the generators of a type that LibTorch 1.13 has no place
// for. Called once, before any thread asks.
void set_default_generators(c10::DeviceType type, std::function<at::Generator(int)> of_device);

// As module.to(device, type), also for PrivateUse1, to which LibTorch 1.13 does not move tensors in
// place. Integers keep their type.
void move_module(torch::nn::Module& module, c10::Device device, c10::ScalarType type);

// Seeds the generators of the CPU and of all devices.
void manual_seed(uint64_t seed);

// Options for host memory through which `tensor` is copied to and from its device: of its dtype,
// page-locked for CUDA, as only copies of such memory run beside the host.
c10::TensorOptions staging_options(const at::Tensor& tensor);

}  // namespace troika::compat
