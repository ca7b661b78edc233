// The interface of gradient compression: computes the mean of a bucket over the ranks with fewer
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

// A bucket of gradients. `flat` is one-dimensional, contiguous, of a floating type and without a
// graph. `parts` are views of `flat`, one after another without gaps, with the shapes and memory
// layouts of the parameters, and `names` are those of the parameters. Codecs with a state need
// them.
struct GradientBucket {
  int64_t index = 0;
  at::Tensor flat;
  std::vector<at::Tensor> parts;
  std::vector<std::string> names = {};
};

// Every rank of a group owns one codec and calls it for the same buckets in the same order. With
// error feedback, each rank keeps the compression error of each parameter and adds it to the
// parameter's next gradient, in whatever bucket, so that over any number of steps
//   sum over ranks of inputs = ranks * sum of results + sum over ranks of kept errors
// up to rounding of the computation type: float64 for float64 buckets, otherwise float32. Not
// thread-safe.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::string_view name() const = 0;

  // Sets bucket.flat to the mean of the ranks' buckets, up to the loss of this codec; all ranks get
  // the same bits. If a rank's bucket has NaN or infinity, the result is not finite either, and
  // neither the kept errors nor the factors change, so a caller may skip such a step. Collective,
  // blocking. Throws what the group's collectives throw, and Error(usage) if the bucket does not
  // match the kept state.
  virtual void average(const Group& group, const GradientBucket& bucket) = 0;

  // Everything the next step depends on, under the names of parameters ("error.NAME", "step.NAME",
  // "q.NAME"), for a checkpoint of this rank. The caller must not write to the tensors; later steps
  // do not change them.
  virtual state::StateDict state() const { return {}; }
  // Replaces the state by copies of these tensors, with kept errors times `weight`: the ranks of
  // the group / those of the saved codec's group, or 0 if another rank has saved the state. With 1,
  // the next average() gives the same bits as in the codec that was saved. Throws Error(usage) that
  // names a tensor that does not belong, and changes nothing.
  virtual void load_state(const state::StateDict& state, double weight = 1);
};

struct CodecOptions {
  // "none", "fp16", "bf16", "powersgd", "topk", "int8".
  std::string name = "none";
  int64_t rank = 1;            // powersgd
  double density = 0.01;       // topk: the fraction of elements sent
  int64_t block = 256;         // int8: elements that share a scale
  bool error_feedback = true;  // powersgd, topk, int8
  bool warm_start = true;      // powersgd: reuse Q of the previous step
  // powersgd: initial steps averaged without compression; at least 2 with error feedback or warm
  // start
  int64_t start_step = 10;
  uint64_t seed = 0;  // powersgd: for the initial Q, the same on all ranks
};

// Throws Error(usage) for an unknown name, suggesting the nearest, and for values out of range.
std::unique_ptr<Codec> make_codec(const CodecOptions& options);

}  // namespace troika::comm
