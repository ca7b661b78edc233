// Other libraries' all-reduces with which Troika's is compared. Each has a source file of its own,
// and an empty replacement for builds without the library.
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

  // The library's name and version if it is outside LibTorch; otherwise empty.
  virtual std::string version() const = 0;
  // Sums a contiguous float32 tensor over all ranks, in place; blocks.
  virtual void all_reduce(at::Tensor& tensor) = 0;
};

struct PeerRow {
  std::string_view name;
  std::string_view label;  // in the table
  // Returns the reason why the peer does not work in this build; empty if it works.
  std::string (*why_unavailable)();
  // Called by all ranks of `control`, a group for coordination; they become the peer's ranks.
  std::unique_ptr<Peer> (*make)(const comm::Group& control);
};

// Returns the row with that name; throws Error(usage) for an unknown or unavailable peer.
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
