// Buckets: gradients that lie in one flat tensor and are averaged by one collective.
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
struct GradientSlot {
  std::string name;
  at::Tensor parameter;
  at::TensorOptions options;  // type and device of the parameter when the buckets were made
  at::Tensor view;        // part of the bucket, with the parameter's strides; undefined if closed
  size_t bucket = 0;      // index of the bucket
  int64_t offset = 0;     // of the first element in the bucket
  int expected = 1;       // gradients that a backward pass makes for the parameter
  int fired = 0;          // gradients that the current backward pass has made
  bool used = false;      // has got a gradient in this step, including under no_sync()
  bool filled = false;    // `view` holds this rank's contribution to the step
  bool averaged = false;  // some rank had a gradient for it at the last finish()
  std::unique_ptr<compat::GradientHook> hook;
};

// The part of a bucket's mean that a rank keeps.
enum class Keeps {
  all,            // the whole bucket
  own_block,      // rank r keeps the r-th of `ranks` equal parts (its block), in place
  own_block_only  // the same part, in its own memory; the bucket has memory only while in use
};

struct Bucket {
  comm::GradientBucket gradient;
  int64_t count = 0;  // elements, padding included; see layout::padded_count()
  // This rank's block of the mean, [count / ranks]. With Keeps::own_block_only it is undefined
  // before the first step.
  at::Tensor own_block;
  std::string label;            // names the bucket's collectives
  std::vector<size_t> members;  // indices of slots, in memory order
  size_t pending = 0;           // members whose gradients are not ready yet
  std::optional<comm::Work> work;
  std::optional<comm::Work> copied;  // average of own_block over ReducerOptions::copies
};

// Returns layout::BucketItem::kind of a tensor: its type and device.
int64_t bucket_kind(const at::Tensor& tensor);

// Calls layout::assign_buckets() for these slots, in the order `order`. A bucket holds slots of one
// type and device.
std::vector<std::vector<size_t>> assign_buckets(const std::vector<GradientSlot>& slots,
                                                const std::vector<size_t>& order,
                                                int64_t first_bytes, int64_t bytes);

// Makes buckets of these members in the group's memory, and sets view, bucket and offset of every
// slot. Defined gradients are copied into their views, and .grad becomes the view. With
// Keeps::own_block_only the buckets start closed, and .grad stays as it is. The border between two
// ranks' blocks may cut a slot of at least `shard_multiple` elements only at a multiple of
// `shard_multiple` elements.
std::vector<Bucket> make_buckets(const comm::Group& group, std::vector<GradientSlot>& slots,
                                 const std::vector<std::vector<size_t>>& members,
                                 Keeps keeps = Keeps::all, int64_t shard_multiple = 1);

// Allocates a closed bucket and makes the views of its members. Only the padding is initialised.
void open_bucket(const comm::Group& group, std::vector<GradientSlot>& slots, Bucket& bucket);
// Releases the bucket's memory and the views of its members.
void close_bucket(std::vector<GradientSlot>& slots, Bucket& bucket);

// Returns an uninitialised flat tensor [count] of the type and on the device of `like`; on the CPU
// it is in the group's memory.
at::Tensor allocate_flat(const comm::Group& group, int64_t count, const at::Tensor& like);

// Copies the slot's .grad, which must be defined, into the slot's view, and makes .grad an alias of
// that view.
void adopt_gradient(GradientSlot& slot);

}  // namespace troika::parallel
