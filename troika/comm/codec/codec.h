// The seam of gradient compression: how the mean of a bucket over the ranks is made with fewer
// bytes on the wire.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"
#include "troika/state/state_dict.h"

namespace troika::comm {

// A bucket of gradients: `flat` is one-dimensional, contiguous, of a floating type and without a
// graph; `parts` are aliases of it, one after another without gaps, in the parameters' shapes and
// in the order of dimensions in which those lie in memory.
struct GradientBucket {
  int64_t index = 0;
  at::Tensor flat;
  std::vector<at::Tensor> parts;
};

// Every rank of a group owns one codec and calls it for the same buckets in the same order. With
// error feedback, what compression leaves out is kept per bucket on each rank and added to its next
// gradient, so that over any number of steps
//   sum over ranks of what was given = ranks * sum of what was applied + sum over ranks of memories
// up to rounding of the type of computation: float64 for float64 buckets, else float32. One thread
// at a time.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;

  // bucket.flat = the mean of the ranks' buckets, up to what this codec loses; the same bits on all
  // ranks. Where a rank gave NaN or infinity the result is not finite either, and neither errors
  // nor factors change: a caller that skips such a step goes on undisturbed. Blocks. Throws what
  // the group's collectives throw, and Error(usage) for a bucket that what was kept of it does not
  // fit.
  virtual void average(const Group& group, const GradientBucket& bucket) = 0;

  // Everything the next step depends on, under stable names ("bucket0.error", "bucket0.step",
  // "bucket0.part3.q"): to be saved and loaded with a checkpoint of this rank. Not to be written
  // to; later steps leave the tensors as they are.
  virtual state::StateDict state() const { return {}; }
  // Replaces everything kept by copies of these tensors; the next average() has then the bits it
  // would have had in the codec that was saved. Throws Error(usage) naming a tensor that does not
  // belong, with nothing changed.
  virtual void load_state(const state::StateDict& state);
};

struct CodecOptions {
  // "none", "fp16", "bf16", "powersgd", "topk", "int8".
  std::string name = "none";
  int64_t rank = 1;            // powersgd
  double density = 0.01;       // topk: the fraction of elements sent
  int64_t block = 256;         // int8: elements that share a scale
  bool error_feedback = true;  // powersgd, topk, int8
  bool warm_start = true;      // powersgd: reuse Q of the step before
  // powersgd: steps averaged without compression first; at least 2 with error feedback or warm
  // start
  int64_t start_step = 10;
  uint64_t seed = 0;  // powersgd: of the first Q, the same on all ranks
};

// Throws Error(usage) for an unknown name, with the nearest, and for values out of range.
std::unique_ptr<Codec> make_codec(const CodecOptions& options);

}  // namespace troika::comm
