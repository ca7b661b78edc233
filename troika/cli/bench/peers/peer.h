// The peers that Troika's all-reduce is measured against: other libraries' own, one source each,
// with an empty twin where it cannot be built.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>

#include "troika/comm/group.h"

namespace troika::cli::bench {

class Peer {
 public:
  virtual ~Peer() = default;

  // The library, where it is not LibTorch; else empty.
  virtual std::string version() const = 0;
  // Sums a contiguous float32 tensor over all ranks, in place; blocks.
  virtual void all_reduce(at::Tensor& tensor) = 0;
};

struct PeerRow {
  std::string_view name;
  std::string_view label;  // in the table
  // Empty when the peer works in this build; else the reason.
  std::string (*why_unavailable)();
  // Called by all ranks of `control`, the group through which they agree, which are the peer's.
  std::unique_ptr<Peer> (*make)(const comm::Group& control);
};

// The row of that name; throws Error(usage) for an unknown or unavailable one.
const PeerRow& peer(std::string_view name);

namespace gloo {
std::string why_unavailable();
std::unique_ptr<Peer> make(const comm::Group& control);
}  // namespace gloo

namespace mpi {
std::string why_unavailable();
std::unique_ptr<Peer> make(const comm::Group& control);
}  // namespace mpi

}  // namespace troika::cli::bench
