// The state that codecs keep from step to step, and the names under which it is saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "troika/comm/codec/codec.h"

namespace troika::comm::codec {

// Names the bucket and the part that a tensor of the state belongs to: "bucket2.error",
// "bucket0.part3.q".
struct StateKey {
  int64_t bucket = 0;
  std::optional<int64_t> part = {};
  std::string field;

  std::string to_text() const;
  static std::optional<StateKey> from_text(const std::string& text);
};

// Throws Error(usage): this tensor does not belong to that codec.
[[noreturn]] void refuse_state(std::string_view codec, const std::string& name);

// Throws Error(usage) unless `kept`, of this name, has that shape and type.
void check_fits(const StateKey& key, const at::Tensor& kept, at::IntArrayRef shape,
                c10::ScalarType type);

// float64 for float64, else float32.
c10::ScalarType computation_type(c10::ScalarType type);

bool all_finite(const at::Tensor& tensor);

// Error feedback (Seide et al. 2014; Karimireddy et al., ICML 2019): what was left out of each
// bucket.
class ErrorMemory {
 public:
  explicit ErrorMemory(bool on) : on_(on) {}

  bool on() const { return on_; }
  // bucket.flat in computation_type() plus what is kept of it: a new tensor.
  at::Tensor added_to(const GradientBucket& bucket) const;
  // Keeps `left_out`, which has the shape of flat, from now on. Takes hold of the tensor.
  void keep(const GradientBucket& bucket, at::Tensor left_out);

  state::StateDict state() const;
  // Replaces everything; throws Error(usage) for what `codec` has not saved.
  void load(const state::StateDict& state, std::string_view codec);

 private:
  bool on_;
  std::map<int64_t, at::Tensor> errors_;  // by bucket
};

}  // namespace troika::comm::codec
