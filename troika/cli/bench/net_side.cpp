#include "troika/cli/bench/net_side.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/net/requests.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cli::bench {

namespace {

constexpr std::chrono::minutes kPatience{1};
constexpr const char* kLocal = "127.0.0.1";

[[noreturn]] void fail_side(const std::string& what) {
  throw Error("bench", ErrorKind::failure, {.what = what, .got = net::system_reason(errno)});
}

// The same number of plain sockets.
class BareSide : public NetSide {
 public:
  BareSide(int streams, bool listens, int control, NetMemory& memory) : memory_(memory) {
    int error = 0;
    const auto deadline = Deadline::after(kPatience);
    if (listens) {
      const auto listener = net::listen_at(kLocal, 0, error);
      if (!listener) fail_side("cannot listen");
      const int port = net::port_of(listener);
      put(control, &port, sizeof(port));
      while (sockets_.size() < static_cast<size_t>(streams)) {
        net::wait_for(listener.get(), POLLIN, deadline);
        sockets_.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      }
    } else {
      int port = 0;
      if (!get(control, &port, sizeof(port))) fail_side("the other process has ended");
      while (sockets_.size() < static_cast<size_t>(streams)) {
        sockets_.push_back(net::try_connect(kLocal, port, deadline).socket);
      }
    }
    for (const auto& socket : sockets_) {
      if (!socket) fail_side("cannot connect");
      net::tune(socket.get());
    }
  }

  void begin_round_trip(size_t bytes) override {
    send_all(bytes);
    receive_all(bytes);
  }
  void serve_round_trip(size_t bytes) override {
    receive_all(bytes);
    send_all(bytes);
  }
  void exchange(size_t bytes) override { move(bytes, bytes); }
  void send_burst(int messages) override {
    for (int i = 0; i < messages; ++i) send_all(kBurstBytes);
    receive_all(1);
  }
  void take_burst(int messages) override {
    for (int i = 0; i < messages; ++i) receive_all(kBurstBytes);
    send_all(1);
  }
  void wait_for_end() override {
    std::string bytes, reason;
    do {
      net::wait_for(sockets_.front().get(), POLLIN, Deadline::after(kPatience));
    } while (net::receive(sockets_.front().get(), bytes, reason));
  }

 private:
  // A long message is spread over all sockets.
  void send_all(size_t bytes) { move(bytes, 0); }
  void receive_all(size_t bytes) { move(0, bytes); }

  void move(size_t out, size_t in) {
    const size_t used = std::max(out, in) > net::kEagerBytes ? sockets_.size() : 1;
    std::vector<pollfd> entries;
    std::vector<size_t> sent(used), got(used);
    for (size_t i = 0; i < used; ++i) entries.push_back({sockets_[i].get(), 0, 0});
    while (true) {
      bool waits = false;
      for (size_t i = 0; i < used; ++i) {
        const auto begin = [&](size_t bytes) { return bytes * i / used; };
        const auto end = [&](size_t bytes) { return bytes * (i + 1) / used; };
        const int socket = sockets_[i].get();
        step(sent[i], end(out) - begin(out), [&](size_t left) {
          return ::send(socket, memory_.outgoing.data() + begin(out) + sent[i], left,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        });
        step(got[i], end(in) - begin(in), [&](size_t left) {
          return ::recv(socket, memory_.incoming.data() + begin(in) + got[i], left, MSG_DONTWAIT);
        });
        const bool sends = sent[i] < end(out) - begin(out), takes = got[i] < end(in) - begin(in);
        entries[i].events = static_cast<short>((sends ? POLLOUT : 0) | (takes ? POLLIN : 0));
        waits |= sends || takes;
      }
      if (!waits) return;
      if (::poll(entries.data(), entries.size(), 60'000) == 0)
        fail_side("the other process is silent");
    }
  }
  template <typename Move>
  static void step(size_t& done, size_t size, const Move& move) {
    if (done == size) return;
    const ssize_t count = move(size - done);
    if (count > 0) done += static_cast<size_t>(count);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR))
      fail_side("lost a connection");
  }

  NetMemory& memory_;
  std::vector<net::Descriptor> sockets_;
};

// Messages and requests of room `net`.
class EndpointSide : public NetSide {
 public:
  EndpointSide(const NetVariant& variant, bool listens, int control, const net::Secret& secret,
               NetMemory& memory)
      : memory_(memory),
        peer_(listens ? "asker" : "answerer"),
        endpoint_({.name = listens ? "answerer" : "asker",
                   .secret = secret,
                   .protection = variant.protection,
                   .streams = variant.streams,
                   .listen = listens ? std::vector<net::Address>{{kLocal, 0}}
                                     : std::vector<net::Address>{}}) {
    endpoint_.listen_to_peers([this](const net::PeerChange& change) { is_up_ = change.is_up; });
    if (variant.carrier == Carrier::request) {
      requests_.emplace(endpoint_, kRequests, memory_.outgoing.size());
      requests_->answer_with(
          [this](const std::string&, std::string question, const net::Answer& answer) {
            answer(std::move(question));
            ++answered_;
          });
    }
    int port = 0;
    if (listens) {
      port = endpoint_.addresses().front().port;
      put(control, &port, sizeof(port));
      wait([this] { return is_up_; });
    } else {
      if (!get(control, &port, sizeof(port))) fail_side("the other process has ended");
      endpoint_.connect(peer_, {{kLocal, port}}, Deadline::after(kPatience));
    }
  }

  void begin_round_trip(size_t bytes) override {
    if (!requests_) {
      send(bytes);
      return receive(bytes);
    }
    bool is_over = false;
    requests_->ask(peer_, std::string_view(memory_.outgoing).substr(0, bytes), kPatience,
                   [&](const net::Result& result, const std::string&) {
                     is_over = result.outcome == net::Outcome::done;
                   });
    wait([&] { return is_over; });
  }
  void serve_round_trip(size_t bytes) override {
    if (!requests_) {
      receive(bytes);
      return send(bytes);
    }
    wait([this] { return answered_ > 0; });
    --answered_;
  }
  void exchange(size_t bytes) override {
    int done = 0;
    const auto count = [&done](const net::Result& result) {
      done += result.outcome == net::Outcome::done;
    };
    endpoint_.receive(peer_, kMessages, std::span(memory_.incoming).first(bytes), count);
    endpoint_.send(peer_, kMessages, std::string_view(memory_.outgoing).substr(0, bytes),
                   net::Priority::normal, count);
    wait([&done] { return done == 2; });
  }
  void send_burst(int messages) override {
    int done = 0;
    for (int i = 0; i < messages; ++i) {
      endpoint_.send(peer_, kBurst, std::string_view(memory_.outgoing).substr(0, kBurstBytes),
                     net::Priority::normal, [&done](const net::Result&) { ++done; });
    }
    wait([&] { return done == messages; });
    receive(1);
  }
  void take_burst(int messages) override {
    int count = 0;
    endpoint_.handle(kBurst, kBurstBytes, [&](const std::string&, const std::string&) { ++count; });
    wait([&] { return count == messages; });
    endpoint_.handle(kBurst, 0, {});
    send(1);
  }
  void wait_for_end() override {
    wait([this] { return !is_up_; });
  }

 private:
  static constexpr net::Channel kMessages = 1, kBurst = 2, kRequests = 3;

  void wait(const std::function<bool()>& is_over) {
    if (!endpoint_.run_until(is_over, kPatience)) fail_side("the other process is silent");
  }
  void send(size_t bytes) {
    net::send_by(endpoint_, peer_, kMessages, std::string_view(memory_.outgoing).substr(0, bytes),
                 Deadline::after(kPatience));
  }
  void receive(size_t bytes) {
    net::receive_by(endpoint_, peer_, kMessages, std::span(memory_.incoming).first(bytes),
                    Deadline::after(kPatience));
  }

  NetMemory& memory_;
  const std::string peer_;
  bool is_up_ = false;
  int answered_ = 0;
  net::TcpEndpoint endpoint_;
  std::optional<net::Requests> requests_;
};

}  // namespace

std::unique_ptr<NetSide> make_side(const NetVariant& variant, bool listens, int control,
                                   const net::Secret& secret, NetMemory& memory) {
  if (variant.carrier == Carrier::bare) {
    return std::make_unique<BareSide>(variant.streams, listens, control, memory);
  }
  return std::make_unique<EndpointSide>(variant, listens, control, secret, memory);
}

void put(int control, const void* value, size_t size) {
  if (::send(control, value, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
    fail_side("the other process has ended");
  }
}

bool get(int control, void* value, size_t size) {
  return ::recv(control, value, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

}  // namespace troika::cli::bench
