// The forward passes of two micro-batches that take turns over a tensor axis (mesh.tensor_overlap).
#pragma once

#include <functional>
#include <vector>

#include "troika/layout/profile.h"
#include "troika/layout/tensor_shard.h"

namespace troika::plan {

// The forward pass of a micro-batch on a rank of a tensor axis: parts that it computes, with the
// collectives between them.
struct ForwardTurns {
  std::vector<layout::TensorTurn> turns = {};
  double seconds_after = 0;  // that the pass computes after the last collective

  // Adds the next block of the pass, one of layout::tensor_shard().
  void add(const layout::ProfiledBlock& block, int ranks, bool sequence_parallel);
  // Returns what the pass computes without its collectives.
  double seconds() const;
};

// The order of two passes with the same turns, as parallel::Lanes runs them: the parts of the first
// and of the second pass alternate, and a part ends when it has started its collective. The next
// part of its pass waits for this collective. Part p has the collective p, unless it ends its pass.
class PairedForward {
 public:
  explicit PairedForward(size_t turns) : turns_(turns) {}

  size_t parts() const { return 2 * turns_ + 2; }
  // Returns the turn of a part: its index in ForwardTurns::turns, or their number at the end.
  size_t turn(size_t part) const { return part / 2; }
  bool has_collective(size_t part) const { return turn(part) < turns_; }
  // Whether the part begins when a collective, that of part - 2, has ended.
  bool waits(size_t part) const { return part >= 2; }

 private:
  size_t turns_;
};

// Returns the seconds of both passes, if nothing else uses the links. `factor` multiplies the
// times of computing, `collective` returns the seconds of a turn's collective. The collectives of
// both passes run one after the other; each of their seconds beside a part adds 1 - overlap to it
// (PassesInStep::overlap).
double paired_seconds(const ForwardTurns& pass, double factor,
                      const std::function<double(const layout::TensorTurn&)>& collective,
                      double overlap);

}  // namespace troika::plan
