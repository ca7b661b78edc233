// The parameters of an optimizer as spans of memory, with consecutive offsets into flat states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/layout/box.h"

namespace troika::optim {

struct Parameter {
  std::string name;  // "layer1.0.conv1.weight"; its states are saved under this name
  at::Tensor tensor;
  // Whether weight decay applies and, in LARS and LAMB, a rate of its own. Recipes for large
  // batches exclude biases and the weights of normalisations.
  bool decay = true;
  // The part of the parameter that `tensor` covers; none: all of it.
  std::optional<layout::Box> box = {};
};

// `count` consecutive elements of one parameter or, after join(), of several.
struct FlatRange {
  size_t index = 0;  // of the parameter; after join(), of the first one
  char* parameter = nullptr;
  const char* gradient = nullptr;
  int64_t offset = 0;  // of the first element's state in a flat state
  int64_t count = 0;
};

// Returns the elements of a flat tensor from `offset` on, in the shape of `like` and, if `like` is
// dense, with its strides. Shares memory with `flat`.
at::Tensor view_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like);

// A fixed list of tensors of one type, float32 or float64, on one device. Each must be dense, with
// any order of dimensions (channels-last is fine); elements are visited in memory order.
class FlatParameters {
 public:
  // Makes an empty list, for a rank that holds none of a model's parameters.
  FlatParameters() = default;
  // Throws Error(usage) for an empty list and, naming the parameter, for a name or memory that
  // occurs twice, a different type or device, and a tensor that is not dense.
  explicit FlatParameters(std::vector<Parameter> parameters);

  const std::vector<Parameter>& list() const { return list_; }
  int64_t size() const { return offsets_.back(); }  // elements of all parameters
  int64_t offset(size_t index) const { return offsets_[index]; }
  at::ScalarType type() const { return type_; }
  c10::Device device() const { return device_; }
  size_t element_bytes() const { return c10::elementSize(type_); }

  // Returns a parameter's part of a flat tensor of size() elements, in its shape and with its
  // strides. Shares memory with `flat`.
  at::Tensor view(const at::Tensor& flat, size_t index) const;

  struct Gradients {
    std::vector<FlatRange> ranges;      // one per parameter that has a gradient, in order
    std::vector<at::Tensor> reordered;  // copies that `ranges` point to
    std::vector<at::Tensor> on_device;  // one per range, if parameters are not on the CPU
  };
  // Returns the current gradients; a gradient with other strides than its parameter is copied.
  // Throws Error(usage) for a gradient of another type, shape or layout.
  Gradients gradients() const;

 private:
  std::vector<Parameter> list_;
  std::vector<int64_t> offsets_ = {0};  // of each parameter, and the end
  at::ScalarType type_ = at::ScalarType::Float;
  c10::Device device_ = c10::DeviceType::CPU;
};

// Joins neighbours whose parameters, gradients and states are adjacent in memory, if `alike(one,
// other)` is true for their indices.
std::vector<FlatRange> join(const std::vector<FlatRange>& ranges, size_t element_bytes,
                            const std::function<bool(size_t, size_t)>& alike);

// Cuts ranges into ranges of at most kAtOnce elements, a multiple of every block size in use. These
// are the units of work for threads and of sums, for any number of threads.
constexpr int64_t kAtOnce = 32768;
std::vector<FlatRange> cut(std::vector<FlatRange> ranges, size_t element_bytes);

}  // namespace troika::optim
