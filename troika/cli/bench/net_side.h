// The two processes of `troika bench net`, and their operations in each variant.
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

// The means of transport: plain sockets, or the messages or requests of room `net`.
enum class Carrier : uint8_t { bare, message, request };

struct NetVariant {
  Carrier carrier{};
  net::Protection protection{};  // after the handshake; plain sockets have none
  int streams = 1;               // data sockets
};

// The send and receive buffers of a process, shared by all variants.
struct NetMemory {
  explicit NetMemory(size_t most_bytes) : outgoing(most_bytes, 'x'), incoming(most_bytes, '?') {}

  std::string outgoing, incoming;
};

// One end of a connection between two processes of this machine over the loopback interface. Each
// function blocks until it is done on this side, and throws Error if that takes longer than a
// minute.
class NetSide {
 public:
  virtual ~NetSide() = default;

  // A message of `bytes` and a reply of the same size: one side begins, the other serves.
  virtual void begin_round_trip(size_t bytes) = 0;
  virtual void serve_round_trip(size_t bytes) = 0;
  // A message of `bytes` in each direction; both sides call this at the same time.
  virtual void exchange(size_t bytes) = 0;
  // One side sends `messages` messages of kBurstBytes; both sides return when all have arrived.
  virtual void send_burst(int messages) = 0;
  virtual void take_burst(int messages) = 0;
  // Blocks until this side learns that the other process has ended.
  virtual void wait_for_end() = 0;
};

// Connects two processes. Both call this, with the two ends of a socket pair over which they
// exchange addresses. `memory` must outlive the result.
std::unique_ptr<NetSide> make_side(const NetVariant& variant, bool listens, int control,
                                   const net::Secret& secret, NetMemory& memory);

// Send and receive a whole value through the socket pair.
void put(int control, const void* value, size_t size);
// Returns false if the other end was closed.
bool get(int control, void* value, size_t size);

}  // namespace troika::cli::bench
