// The state that codecs keep between steps, and the names under which it is saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "troika/comm/codec/codec.h"

namespace troika::comm::codec {

// The name of a state tensor, with its bucket and part: "bucket2.error", "bucket0.part3.q".
struct StateKey {
  int64_t bucket = 0;
  std::optional<int64_t> part = {};
  std::string field;

  std::string to_text() const;
  static std::optional<StateKey> from_text(const std::string& text);
};

// Throws Error(usage): tensor `name` does not belong to this codec.
[[noreturn]] void refuse_state(std::string_view codec, const std::string& name);

// Throws Error(usage) unless the kept tensor of this name has that shape and type.
void check_fits(const StateKey& key, const at::Tensor& kept, at::IntArrayRef shape,
                c10::ScalarType type);

// Returns float64 for float64, otherwise float32.
c10::ScalarType computation_type(c10::ScalarType type);

bool all_finite(const at::Tensor& tensor);

// Error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019): keeps the compression error of
// each bucket.
class ErrorMemory {
 public:
  explicit ErrorMemory(bool on) : on_(on) {}

  bool on() const { return on_; }
  // Returns bucket.flat in computation_type() plus the kept error, as a new tensor.
  at::Tensor added_to(const GradientBucket& bucket) const;
  // Keeps `left_out`, which has the shape of `flat`, for the bucket's next step. Shares the tensor.
  void keep(const GradientBucket& bucket, at::Tensor left_out);

  state::StateDict state() const;
  // Replaces the whole state. Throws Error(usage) for a tensor that `codec` has not saved.
  void load(const state::StateDict& state, std::string_view codec);

 private:
  bool on_;
  std::map<int64_t, at::Tensor> errors_;  // by bucket
};

}  // namespace troika::comm::codec
