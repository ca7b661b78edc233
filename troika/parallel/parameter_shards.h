// Parameters of buckets in flat memory; each rank owns a block of each bucket.
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

// Makes parameters views of flat tensors, one per bucket. Each flat tensor has the layout of the
// bucket of gradients. Rank r owns block r of each bucket. A bucket is either whole (all ranks'
// blocks are present) or released: then its parameters have no memory and must not be used.
//
// All ranks make the same calls, from any thread, one at a time. Gathers use a group of their own,
// so their order does not depend on when gradients arrive.
class ParameterShards {
 public:
  // Parameters must be equal on all ranks. Where `releasable[bucket]` is set, this rank's block
  // gets its own memory and the bucket is released; all other buckets stay whole. Needs memory for
  // one bucket at a time besides that of the parameters. `slots` and `buckets` belong to a Reducer
  // and must outlive this object.
  ParameterShards(const comm::Group& group, const std::vector<GradientSlot>& slots,
                  const std::vector<Bucket>& buckets, const std::vector<bool>& releasable)
      : ParameterShards(group, slots, buckets, releasable, nullptr) {}
  // The same for parameters whose values do not exist yet. Materializes them one after another, and
  // copies only the part that this rank owns. `kept` lists the other tensors of the module, which
  // are materialized too.
  ParameterShards(const comm::Group& group, const std::vector<GradientSlot>& slots,
                  const std::vector<Bucket>& buckets, const std::vector<bool>& releasable,
                  compat::DeferredInit* values, const std::vector<at::Tensor>& kept = {});

  // Returns the shards this rank owns: one, possibly empty, per slot, in the order of slots. A
  // shard has the same number of dimensions as its parameter, all of size 1 except the last,
  // because optimizers may treat vectors and matrices differently. Shards have no autograd history.
  const std::vector<optim::Parameter>& shards() const { return shards_; }

  // Sets the shards' gradients from the buckets' own blocks; undefined where no rank had a
  // gradient.
  void take_gradients();

  // Starts to gather a bucket from all ranks' blocks, unless it is whole or being gathered.
  void start_gather(size_t bucket);
  // Blocks until the bucket's gather is done.
  void wait(size_t bucket);
  // Releases a releasable bucket, after waiting for a gather in progress.
  void release(size_t bucket);
  // The same for all buckets. gather_all() blocks.
  void gather_all();
  void release_all();
  // Gathers all buckets that are whole again, from the ranks' current blocks. Blocks.
  void refresh();

  // Copies the parameters of gathered buckets into this rank's blocks. Call it after writing to
  // these parameters.
  void take_parameters();

  bool is_releasable(size_t bucket) const { return flats_[bucket].releasable; }
  comm::Counters counters() const { return group_.counters(); }

 private:
  struct Flat {
    at::Tensor whole;  // [bucket's count]
    at::Tensor own;    // [count / ranks]
    bool releasable = false;
    bool is_whole = true;  // whole, or being gathered
    std::string label;     // names the bucket's collectives
    std::optional<comm::Work> work;
  };

  void start(Flat& flat);
  void make_shards();
  void take_values(compat::DeferredInit& values,
                   const std::map<compat::DeferredInit::Key, size_t>& slots,
                   const std::vector<at::Tensor>& kept);

  comm::Group group_;
  const std::vector<GradientSlot>& slots_;
  const std::vector<Bucket>& buckets_;
  std::vector<Flat> flats_;
  std::vector<optim::Parameter> shards_;
};

}  // namespace troika::parallel
