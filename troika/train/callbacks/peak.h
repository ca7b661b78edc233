// The peak floating-point rate of a device, for model FLOPs utilization.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace troika::train {

// Returns the peak rate, in FLOPs per second, of dense matrix products of a type on the GPU with
// this driver name, from NVIDIA's data sheets. Empty if the GPU is not in the table or lacks
// products of this type. With `tf32`, products of float32 may round their factors to TF32.
std::optional<double> published_peak(std::string_view gpu_name, at::ScalarType type, bool tf32);

struct PublishedRates {
  double flops = 0;      // per second, of dense products, without TF32
  double bandwidth = 0;  // of the device's memory, in bytes per second
  double memory = 0;     // bytes
};

// Returns the rates of the GPU with this name, such as "A100", from NVIDIA's data sheets. If a GPU
// has several variants, the rates are those of the one with the most memory (A100: SXM, 80 GB).
// Throws Error(usage), naming the nearest known name, for an unknown one, and for a type in which
// the GPU does not compute.
PublishedRates published_rates(const std::string& name, at::ScalarType type);

// Measures the rate, in FLOPs per second, of square matrix products of this type on this device.
// Returns the best of several measurements; takes about 0.2 s.
double measured_peak(at::ScalarType type, at::Device device);

// Measures the memory bandwidth, in bytes per second, of adding two vectors larger than all caches
// into a third (McCalpin's STREAM, but without counting the reads caused by writes). Returns the
// best of several measurements; takes about 0.2 s.
double measured_bandwidth(at::Device device);

struct Peak {
  double flops = 0;  // per second
  std::string source;
};

// Returns the published peak if the GPU is in the table, otherwise the measured peak.
Peak peak_of(at::ScalarType type, at::Device device);

}  // namespace troika::train
