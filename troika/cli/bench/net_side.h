// The two processes of `troika bench net`, and what they do to each other in each variant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troika/net/descriptor.h"
#include "troika/net/frame_cipher.h"

namespace troika::cli::bench {

// The size of each message of a burst.
inline constexpr size_t kBurstBytes = 64;

// Who carries the bytes.
enum class Carrier : uint8_t { bare, message, request };

struct NetVariant {
  Carrier carrier{};
  net::Protection protection{};  // after the handshake; bare sockets have none
  int streams = 1;               // data sockets
};

// The buffers that all variants of a process send from and receive into.
struct NetMemory {
  explicit NetMemory(size_t most_bytes) : outgoing(most_bytes, 'x'), incoming(most_bytes, '?') {}

  std::string outgoing, incoming;
};

// One end of a connection between two processes of this machine, over the loopback interface. Each
// function blocks until it is done on this side, and throws Error when that takes a minute.
class NetSide {
 public:
  virtual ~NetSide() = default;

  // One side begins, the other serves: a message of that size there, and one back.
  virtual void begin_round_trip(size_t bytes) = 0;
  virtual void serve_round_trip(size_t bytes) = 0;
  // Both sides, at the same time: a message of that size each way.
  virtual void exchange(size_t bytes) = 0;
  // One side sends so many messages of kBurstBytes; both end when the other has them all.
  virtual void send_burst(int messages) = 0;
  virtual void take_burst(int messages) = 0;
  // Blocks until the other process is known to have ended.
  virtual void wait_for_end() = 0;
};

// Both processes call it with the two ends of a pair of sockets, over which they find each other.
// The memory must outlive it.
std::unique_ptr<NetSide> make_side(const NetVariant& variant, bool listens, int control,
                                   const net::Secret& secret, NetMemory& memory);

// Through such a pair: whole values.
void put(int control, const void* value, size_t size);
// False when the other end has closed it.
bool get(int control, void* value, size_t size);

}  // namespace troika::cli::bench
