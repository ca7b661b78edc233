// A server of the pages that a program shows about itself: HTTP/1.1 (RFC 9112) with GET and HEAD,
// one request for each connection, without TLS.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "troika/base/clock.h"
#include "troika/net/dial.h"
#include "troika/net/poller.h"

namespace troika::net {

struct HttpReply {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body = {};
  // Content-Security-Policy: where a page may load things from.
  std::string policy = "default-src 'none'";
};

struct HttpLimits {
  // Above this number, the connection that is open for longest is closed.
  size_t connections = 64;
  // A connection is closed after this time, whatever it does.
  Milliseconds patience{5000};
  // Bytes of a request.
  size_t head = size_t{8} << 10;
};

// Answers on a thread of its own. Clients that are slow, silent, or many hold up nobody else. Their
// requests are read no further than HttpLimits::head.
class HttpServer {
 public:
  // Returns the reply to a request for a path, which begins with '/' and has no query. Called by
  // the server's thread; an exception becomes status 500, and is logged.
  using Answer = std::function<HttpReply(const std::string& path)>;

  // `listen`: a numeric address of this machine; port 0: any free one. Throws Error(net, usage) if
  // it cannot listen there.
  HttpServer(const Address& listen, Answer answer, HttpLimits limits = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the actual port.
  const Address& address() const { return address_; }

 private:
  struct Client {
    Descriptor socket;
    Deadline until;
    std::string request = {};
    std::string reply = {};        // empty: the request is not complete
    std::string_view unsent = {};  // part of `reply`
    bool is_done = false;          // the reply is sent; what still comes is dropped
  };
  using Place = std::list<Client>::iterator;

  void serve();
  void accept_clients();
  void listen_again();
  void close_late();
  void close(Place place);
  void ready(Place place, uint32_t events);
  // These two return false when the connection must be closed.
  bool read(Client& client);
  bool write(Client& client);
  std::string reply_to(std::string_view head) const;

  const Answer answer_;
  const HttpLimits limits_;
  Descriptor listener_;
  Address address_;
  Poller poller_;
  const Waker waker_;
  std::list<Client> clients_;      // in the order in which they came
  std::optional<Deadline> rests_;  // after running out of descriptors
  std::atomic<bool> stops_ = false;
  std::thread thread_;
};

}  // namespace troika::net
