// Parameters as an optimizer walks over them: spans of memory, laid out one after the other for the
// states that belong to them.
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
  std::string name;  // "layer1.0.conv1.weight": what its states are saved under
  at::Tensor tensor;
  // Whether weight decay, and in LARS and LAMB the rate of its own, count for it. Recipes for large
  // batches leave biases and the weights of normalisations out.
  bool decay = true;
  // Which part of the parameter `tensor` is; none: all of it.
  std::optional<layout::Box> box = {};
};

// `count` consecutive elements of one parameter or, joined, of several.
struct Piece {
  size_t index = 0;  // of the parameter, of the first where several are joined
  char* parameter = nullptr;
  const char* gradient = nullptr;
  int64_t offset = 0;  // where the states of its first element lie in a flat state
  int64_t count = 0;
};

// The elements of a flat tensor from `offset` on, in the shape of `like` and in its order of
// dimensions, if it fills the memory it spans. Shares memory with `flat`.
at::Tensor part_like(const at::Tensor& flat, int64_t offset, const at::Tensor& like);

// A fixed list of tensors of one type, float32 or float64, on one device. Each must fill the memory
// it spans, in whatever order of dimensions (channels-last is fine): its elements are visited as
// they lie.
class FlatParameters {
 public:
  // Throws Error(usage), naming the parameter, for a name or memory that occurs twice, another type
  // or device, and gaps in memory.
  explicit FlatParameters(std::vector<Parameter> parameters);

  const std::vector<Parameter>& list() const { return list_; }
  int64_t size() const { return offsets_.back(); }  // elements of all
  int64_t offset(size_t index) const { return offsets_[index]; }
  at::ScalarType type() const { return type_; }
  c10::Device device() const { return device_; }
  size_t element_bytes() const { return c10::elementSize(type_); }

  // The part of a flat tensor of size() elements that belongs to a parameter, in its shape and
  // order of dimensions. It shares memory with `flat`.
  at::Tensor view(const at::Tensor& flat, size_t index) const;

  struct Gradients {
    std::vector<Piece> pieces;          // one per parameter that has a gradient, in order
    std::vector<at::Tensor> reordered;  // keeps copies alive that `pieces` point to
    std::vector<at::Tensor> on_device;  // one a piece, where the parameters are not on the CPU
  };
  // The gradients as they lie now; one in another order of dimensions than its parameter is copied.
  // Throws Error(usage) for a gradient of another type, shape or layout.
  Gradients gradients() const;

 private:
  std::vector<Parameter> list_;
  std::vector<int64_t> offsets_ = {0};  // of each, and the end
  at::ScalarType type_ = at::ScalarType::Float;
  c10::Device device_ = c10::DeviceType::CPU;
};

// Joins neighbours whose parameters, gradients and states follow each other in memory, where
// `alike(one, other)` of their indices holds.
std::vector<Piece> join(const std::vector<Piece>& pieces, size_t element_bytes,
                        const std::function<bool(size_t, size_t)>& alike);

// Cuts into pieces of at most kAtOnce elements, a multiple of every block size in use: what threads
// share among each other, and what sums are made of, whatever the number of threads.
constexpr int64_t kAtOnce = 32768;
std::vector<Piece> cut(std::vector<Piece> pieces, size_t element_bytes);

}  // namespace troika::optim
