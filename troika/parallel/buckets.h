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
  at::Tensor view;    // of its bucket, in the parameter's shape
  size_t bucket = 0;  // its index
  int expected = 1;   // gradients a backward pass makes for it, until it is ready
  int fired = 0;      // that this one has made so far
  bool used = false;  // has got a gradient since the last finish, no_sync() included
  at::Tensor kept;    // what `view` held where nothing was added, for the case that no rank did
  std::unique_ptr<compat::GradientHook> hook;
};

struct Bucket {
  comm::GradientBucket gradient;
  std::vector<size_t> members;  // indices of slots, in the order in which they lie
  size_t pending = 0;           // of them, not ready yet
  std::optional<comm::Work> work;
};

// The indices of `slots` that share a bucket, for buckets in the order of `order`. One is open per
// type and device; it closes when it reaches its limit, which is `first_bytes` for the first of all
// (Li et al., VLDB 2020, section 3.2.3). Plain data in, so that equal arguments give equal buckets
// on all ranks.
std::vector<std::vector<size_t>> assign_buckets(const std::vector<Slot>& slots,
                                                const std::vector<size_t>& order,
                                                int64_t first_bytes, int64_t bytes);

// Buckets of these members, in the group's memory; fills in view and bucket of every slot. A
// gradient that is defined moves into its view with its value.
std::vector<Bucket> make_buckets(const comm::Group& group, std::vector<Slot>& slots,
                                 const std::vector<std::vector<size_t>>& members);

// Makes .grad, which is defined, an alias of the slot's view with the same value.
void adopt_gradient(Slot& slot);

}  // namespace troika::parallel
