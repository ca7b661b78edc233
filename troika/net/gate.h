// The listening sockets of an endpoint and its new, unauthenticated connections.
//
// Until a connection has proved that it holds the secret, it is sent no byte. Unauthenticated
// connections take few descriptors, for seconds, and only the memory of a handshake and a hello.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/net/hello.h"
#include "troika/net/poller.h"

namespace troika::net {

struct GateLimits {
  // Connections without a valid first message. Above this number the oldest is closed.
  size_t strangers = 64;
  Milliseconds proof_time{2000};
  // Connections with a valid first message but no hello yet. At this number no more are accepted.
  size_t newcomers = 256;
  Milliseconds hello_time{20'000};
};

// Rejected connections since the start.
struct Unwelcome {
  int unproven = 0;            // followed the protocol, but did not hold the secret
  std::string accept_problem;  // the last reason why accept() failed; empty if it never did
};

// A connection that has proved that it holds the secret and sent its hello. It awaits the reply.
struct Arrival {
  Descriptor socket;  // nonblocking
  SessionKeys keys;   // for the frames
  Session session;    // for the reply
  Hello hello;
};

// Only one thread at a time may use it. `poller` must outlive it.
class Gate {
 public:
  // `endpoints`: the names under which connections may be made.
  Gate(Poller& poller, const Secret& secret, const std::vector<std::string>& endpoints,
       std::vector<Descriptor> listeners, GateLimits limits, std::function<void(Arrival)> admit);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // While `has_room` returns false, connections wait in the kernel's backlog.
  void accept_while(std::function<bool()> has_room);
  const Unwelcome& unwelcome() const { return unwelcome_; }
  // When expire() must be called next; none if only an event can change something.
  std::optional<Deadline> deadline() const;
  void expire();
  // Stops accepting and closes the connections that have not sent a hello.
  void close();

 private:
  struct Newcomer {
    Descriptor socket;
    Deadline until;
    std::string bytes = {};                // received part of the first message
    std::optional<SessionKeys> keys = {};  // set after the first message
    std::optional<Session> session = {};
  };
  using Place = std::list<Newcomer>::iterator;

  size_t count_strangers() const;
  bool has_room() const;
  void set_listening(bool listens);
  void accept_from(int listener);
  void keep_strangers(size_t most);
  void read(Place place);
  // Returns false if the connection must be closed.
  bool take_first_message(Newcomer& newcomer);
  std::optional<Hello> take_hello(Newcomer& newcomer, const std::string& bytes, bool& goes_on);
  void drop(Place place);

  Poller& poller_;
  std::vector<ServerHandshake> handshakes_;  // by name
  std::vector<Descriptor> listeners_;
  const GateLimits limits_;
  const std::function<void(Arrival)> admit_;
  std::list<Newcomer> newcomers_;
  std::function<bool()> has_room_;
  Unwelcome unwelcome_;
  bool listens_ = false;
  std::optional<Deadline> rests_;  // pause after running out of descriptors
};

}  // namespace troika::net
