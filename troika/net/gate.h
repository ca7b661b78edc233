// The listeners of an endpoint, and the connections that have yet to prove that they belong to the
// run.
//
// Strangers get no byte. They hold few descriptors, for seconds, and no more memory than a
// handshake and a hello need.
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
  // Who has not sent a right first message: the oldest goes when one more comes.
  size_t strangers = 64;
  Milliseconds proof_time{2000};
  // Who has, and has not said hello: no more connections are accepted before one has.
  size_t newcomers = 256;
  Milliseconds hello_time{20'000};
};

// Who was not let in, since the beginning.
struct Unwelcome {
  int unproven = 0;            // connections that spoke as an endpoint does, without the secret
  std::string accept_problem;  // why some could not be accepted, the last time; "": all could
};

// A connection that has proved itself and said hello, and waits for the reply.
struct Arrival {
  Descriptor socket;  // nonblocking
  SessionKeys keys;   // of the frames
  Session session;    // of the reply
  Hello hello;
};

// For a single thread at a time. The poller must outlive it.
class Gate {
 public:
  Gate(Poller& poller, const Secret& secret, const std::string& endpoint,
       std::vector<Descriptor> listeners, GateLimits limits, std::function<void(Arrival)> admit);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // While `has_room` says no, connections wait in the system's queue.
  void accept_while(std::function<bool()> has_room);
  const Unwelcome& unwelcome() const { return unwelcome_; }
  // When expire() is to be called; nothing: not before something happens.
  std::optional<Deadline> deadline() const;
  void expire();
  // Accepts nobody any more, and ends who has not said hello.
  void close();

 private:
  struct Newcomer {
    Descriptor socket;
    Deadline until;
    std::string bytes = {};                // of the first message
    std::optional<SessionKeys> keys = {};  // after it
    std::optional<Session> session = {};
  };
  using Place = std::list<Newcomer>::iterator;

  size_t count_strangers() const;
  bool has_room() const;
  void set_listening(bool listens);
  void accept_from(int listener);
  void keep_strangers(size_t most);
  void read(Place place);
  // Whether the connection goes on.
  bool take_first_message(Newcomer& newcomer);
  std::optional<Hello> take_hello(Newcomer& newcomer, const std::string& bytes, bool& goes_on);
  void drop(Place place);

  Poller& poller_;
  ServerHandshake handshake_;
  std::vector<Descriptor> listeners_;
  const GateLimits limits_;
  const std::function<void(Arrival)> admit_;
  std::list<Newcomer> newcomers_;
  std::function<bool()> has_room_;
  Unwelcome unwelcome_;
  bool listens_ = false;
  std::optional<Deadline> rests_;  // after there was no descriptor left
};

}  // namespace troika::net
