// The seam a communication back end fills: tagged messages between ranks. Collectives are written
// once over these (collectives.h), so nothing is "not supported" on any back end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "troika/base/clock.h"

namespace troika::comm {

// One message under way. The buffer it was started with must stay alive until wait() has returned.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until a receive has its bytes, or a send's buffer may be reused. Throws Error: `timeout`
  // past the deadline, `peer` when the other rank is gone.
  virtual void wait(Deadline deadline) = 0;
};

// Messages between the ranks of one group. Messages of one (sender, receiver, tag) arrive in the
// order they were sent; a receive must name exactly the size that was sent. Calls may come from
// several threads. Peers are ranks of the group.
class GroupImpl {
 public:
  virtual ~GroupImpl() = default;

  virtual std::string_view backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data,
                                         size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;

  // This rank will not call again because of `reason`: waits of the others, and of this rank on
  // other threads, fail soon with Error(peer), not at their deadline. A group that is simply
  // destroyed leaves in peace.
  virtual void abandon(const std::string& reason) = 0;
};

}  // namespace troika::comm
