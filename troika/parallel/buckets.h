// How gradients lie together in memory: what is averaged in one go.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/comm/codec/codec.h"
#include "troika/comm/group.h"

namespace troika::compat {
class GradientHook;
}

namespace troika::parallel {

// A parameter whose gradient is averaged.
struct Slot {
  std::string name;
  at::Tensor parameter;
  at::TensorOptions options;  // type and device of the parameter when buckets were made
  at::Tensor view;      // of its bucket, laid out as the parameter; undefined while that is closed
  size_t bucket = 0;    // its index
  int64_t offset = 0;   // of its first element in the bucket
  int expected = 1;     // gradients a backward pass makes for it, until it is ready
  int fired = 0;        // that this one has made so far
  bool used = false;    // has got a gradient in this step, no_sync() included
  bool filled = false;  // `view` holds what this rank gives to the step
  bool averaged = false;  // some rank had one for it, by the last finish
  std::unique_ptr<compat::GradientHook> hook;
};

// The part of a bucket's mean that ranks keep.
enum class Keeps {
  all,            // of it
  own_block,      // the r-th of as many equal blocks as there are ranks, in place
  own_block_only  // that in memory of its own; the bucket has memory only while it is filled
};

struct Bucket {
  comm::GradientBucket gradient;
  int64_t count = 0;  // of elements; see layout::padded_count()
  // This rank's block of the mean, [count / ranks]; with Keeps::own_block_only from the
  // first step on.
  at::Tensor own_block;
  std::string label;            // of its collectives
  std::vector<size_t> members;  // indices of slots, in the order in which they lie
  size_t pending = 0;           // of them, not ready yet
  std::optional<comm::Work> work;
  std::optional<comm::Work> copied;  // after that, the mean over copies of own_block
};

// layout::assign_buckets() of these slots, which a bucket holds of one type and device, in the
// order of `order`.
std::vector<std::vector<size_t>> assign_buckets(const std::vector<Slot>& slots,
                                                const std::vector<size_t>& order,
                                                int64_t first_bytes, int64_t bytes);

// Buckets of these members, in the group's memory; fills in view, bucket and offset of every slot.
// A gradient that is defined moves into its view with its value, unless buckets start closed, as
// they do for Keeps::own_block_only. Blocks are cut within slots of at least `piece_multiple`
// elements at multiples of that.
std::vector<Bucket> make_buckets(const comm::Group& group, std::vector<Slot>& slots,
                                 const std::vector<std::vector<size_t>>& members,
                                 Keeps keeps = Keeps::all, int64_t piece_multiple = 1);

// Memory for a bucket that has none, and the views of its members; only what pads these is set.
void open_bucket(const comm::Group& group, std::vector<Slot>& slots, Bucket& bucket);
// Gives it up again.
void close_bucket(std::vector<Slot>& slots, Bucket& bucket);

// An uninitialised flat tensor of the type and on the device of `like`, on a host in the group's
// memory.
at::Tensor allocate_flat(const comm::Group& group, int64_t count, const at::Tensor& like);

// Makes .grad, which is defined, an alias of the slot's view with the same value.
void adopt_gradient(Slot& slot);

}  // namespace troika::parallel
