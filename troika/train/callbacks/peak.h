// How many floating-point operations a second a device can make at most: what model FLOPs
// utilisation is a share of.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace troika::train {

// FLOPs a second of dense matrix products of a type, by NVIDIA's data sheets, of the GPU with this
// driver's name; none if it is not in the table or has no such products. `tf32`: products of
// float32 may round their factors to TF32.
std::optional<double> published_peak(std::string_view gpu_name, at::ScalarType type, bool tf32);

// FLOPs a second of products of two square matrices of this type on this device: the best of
// several, in about 0.2 s.
double measured_peak(at::ScalarType type, at::Device device);

// Bytes a second that memory moves where two vectors that no cache holds are added into a third
// (McCalpin's STREAM, but without the reads that come before its writes): the best of several, in
// about 0.2 s.
double measured_bandwidth(at::Device device);

struct Peak {
  double flops = 0;  // a second
  std::string source;
};

// The published one of a GPU that is in the table, else the measured one.
Peak peak_of(at::ScalarType type, at::Device device);

}  // namespace troika::train
