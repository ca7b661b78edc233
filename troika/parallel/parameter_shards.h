// The parameters of buckets in flat memory, of which each rank owns a block.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/compat/deferred_init.h"
#include "troika/optim/flat_parameters.h"
#include "troika/parallel/buckets.h"
#include "troika/parallel/parameter_store.h"

namespace troika::parallel {

// Parameters become views of flat tensors, one per bucket, laid out as its gradients. Rank r owns
// the r-th block of each. A bucket is whole, with what all ranks own, or released: its parameters
// have no memory then, and may not be used.
//
// All ranks make the same calls, from any thread, one at a time. Gathering is up to a group of its
// own, so its order does not depend on when gradients come.
class ParameterShards {
 public:
  // Values are equal on all ranks. Where `releasable[bucket]`, this rank's block is kept apart, and
  // the bucket is released; all others are whole. It takes memory for one bucket at a time beside
  // that of the parameters so far. `slots` and `buckets` are a Reducer's, and outlive this object.
  ParameterShards(const comm::Group& group, const std::vector<Slot>& slots,
                  const std::vector<Bucket>& buckets, const std::vector<bool>& releasable)
      : ParameterShards(group, slots, buckets, releasable, nullptr) {}
  // For parameters whose values are still to be made: makes them, each only while this rank takes
  // what it owns of it. Other tensors of the module, in `kept`, get theirs too.
  ParameterShards(const comm::Group& group, const std::vector<Slot>& slots,
                  const std::vector<Bucket>& buckets, const std::vector<bool>& releasable,
                  compat::DeferredInit* values, const std::vector<at::Tensor>& kept = {});

  // The pieces this rank owns: one, maybe empty, of every slot, in their order. A piece has its
  // parameter's number of dimensions, so that rules for vectors hold for it, all but the last of
  // size 1; it has no autograd history.
  const std::vector<optim::Parameter>& pieces() const { return pieces_; }

  // Gives pieces the gradients that the buckets' own blocks hold; none where no rank had one.
  void take_gradients();

  // Starts to make a bucket whole from all ranks' blocks, if it is not under way or done.
  void start_gather(size_t bucket);
  // Blocks until that is done.
  void wait(size_t bucket);
  // Releases a releasable bucket; waits where it is being gathered.
  void release(size_t bucket);
  // Whole buckets get what ranks' own blocks hold by now. Blocks.
  void refresh();

  // Takes for this rank's blocks what parameters of whole buckets hold, after they were written to.
  void take_parameters();

  bool is_releasable(size_t bucket) const { return flats_[bucket].releasable; }
  comm::Counters counters() const { return group_.counters(); }

 private:
  struct Flat {
    at::Tensor whole;  // [bucket's count]
    at::Tensor own;    // [count / ranks]
    bool releasable = false;
    bool is_whole = true;  // or on its way there
    std::string label;     // of its collectives
    std::optional<comm::Work> work;
  };

  void start(Flat& flat);
  void make_pieces();
  void take_values(compat::DeferredInit& values,
                   const std::map<compat::DeferredInit::Key, size_t>& slots,
                   const std::vector<at::Tensor>& kept);

  comm::Group group_;
  const std::vector<Slot>& slots_;
  const std::vector<Bucket>& buckets_;
  std::vector<Flat> flats_;
  std::vector<optim::Parameter> pieces_;
};

}  // namespace troika::parallel
