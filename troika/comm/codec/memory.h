// The state that codecs keep between steps, and the names under which it is saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>

#include "troika/comm/codec/codec.h"

namespace troika::comm::codec {

// The name of a state tensor, with its parameter: "error.layer.weight".
struct StateKey {
  std::string field;
  std::string parameter;

  std::string to_text() const { return field + "." + parameter; }
  // Returns a key without a parameter if the text has no dot.
  static StateKey from_text(const std::string& text);
};

// Throws Error(usage): tensor `name` does not belong to this codec.
[[noreturn]] void refuse_state(std::string_view codec, const std::string& name);

// Throws Error(usage) unless the kept tensor of this name has that shape and type.
void check_fits(const StateKey& key, const at::Tensor& kept, at::IntArrayRef shape,
                c10::ScalarType type);

// Throws CheckError unless the parts of the bucket have names.
void require_names(const GradientBucket& bucket);

// Returns float64 for float64, otherwise float32.
c10::ScalarType computation_type(c10::ScalarType type);

bool all_finite(const at::Tensor& tensor);

// Error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019): keeps the compression error of
// each parameter.
class ErrorMemory {
 public:
  explicit ErrorMemory(bool on) : on_(on) {}

  bool on() const { return on_; }
  // Returns bucket.flat in computation_type() plus the kept errors of its parts, as a new tensor on
  // this device.
  at::Tensor added_to(const GradientBucket& bucket, at::Device device) const;
  // Keeps `left_out`, which has the shape of `flat`, for the next step of the bucket's parts.
  // Shares the tensor.
  void keep(const GradientBucket& bucket, const at::Tensor& left_out);

  state::StateDict state() const;
  // Replaces the whole state, with errors times `weight`; 0: by nothing. Throws Error(usage) for a
  // tensor that `codec` has not saved.
  void load(const state::StateDict& state, double weight, std::string_view codec);

 private:
  bool on_;
  std::map<std::string, at::Tensor> errors_;  // by parameter, with its shape
};

}  // namespace troika::comm::codec
