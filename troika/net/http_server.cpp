#include "troika/net/http_server.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/net/socket.h"

namespace troika::net {

namespace {

constexpr Milliseconds kRestOfListener{100};
// Bytes after a request are read and dropped up to this, because closing a socket with unread bytes
// discards the reply.
constexpr size_t kMostDropped = size_t{1} << 20;

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

std::string text_of(const HttpReply& reply, bool has_body) {
  return fmt::format(
             "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nContent-Security-Policy: "
             "{}\r\n"
             "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: "
             "no-referrer\r\n{}"
             "Connection: close\r\n\r\n",
             reply.status, reason_of(reply.status), reply.type, reply.body.size(), reply.policy,
             reply.status == 405 ? "Allow: GET, HEAD\r\n" : "") +
         (has_body ? reply.body : "");
}

std::string problem(int status) {
  return text_of({.status = status, .body = fmt::format("{} {}\n", status, reason_of(status))},
                 /*has_body=*/true);
}

// The part before a blank, which it removes together with the blank.
std::string_view take_word(std::string_view& line) {
  const auto word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

}  // namespace

HttpServer::HttpServer(const Address& listen, Answer answer, HttpLimits limits)
    : answer_(std::move(answer)), limits_(limits), address_(listen) {
  int error = 0;
  listener_ = listen_at(listen.host, listen.port, error);
  if (!listener_) {
    throw Error(
        "net", ErrorKind::usage,
        {.what = fmt::format("cannot serve pages at port {} of {}", listen.port, listen.host),
         .got = system_reason(error),
         .expected = "a numeric address of this machine and a free port"});
  }
  address_.port = port_of(listener_);
  poller_.add(waker_.fd(), [this](uint32_t) { waker_.clear(); });
  poller_.add(listener_.get(), [this](uint32_t) { accept_clients(); });
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  stops_ = true;
  waker_.wake();
  thread_.join();
}

void HttpServer::serve() {
  Poller::Events events;
  while (!stops_) {
    Duration at_most{-1};
    if (!clients_.empty()) at_most = clients_.front().until.left();
    if (rests_)
      at_most =
          at_most < Duration(0) ? rests_->left() : std::min<Duration>(at_most, rests_->left());
    poller_.dispatch(poller_.wait(events, at_most));
    close_late();
    if (rests_ && rests_->passed()) listen_again();
  }
}

void HttpServer::listen_again() {
  rests_.reset();
  poller_.add(listener_.get(), [this](uint32_t) { accept_clients(); });
}

void HttpServer::accept_clients() {
  for (;;) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // Without descriptors, the listener would be ready again and again.
      poller_.remove(listener_.get());
      rests_ = Deadline::after(kRestOfListener);
      return;
    }
    if (clients_.size() >= limits_.connections) close(clients_.begin());
    const int fd = socket.get();
    const auto place =
        clients_.insert(clients_.end(), {std::move(socket), Deadline::after(limits_.patience)});
    poller_.add(fd, [this, place](uint32_t events) { ready(place, events); });
  }
}

void HttpServer::close_late() {
  while (!clients_.empty() && clients_.front().until.passed()) close(clients_.begin());
}

void HttpServer::close(Place place) {
  poller_.remove(place->socket.get());
  clients_.erase(place);
}

void HttpServer::ready(Place place, uint32_t events) {
  const bool reads = (events & ~static_cast<uint32_t>(EPOLLOUT)) != 0;
  if (!(reads ? read(*place) : true) || !write(*place)) close(place);
}

bool HttpServer::read(Client& client) {
  std::array<char, 4096> bytes;
  const auto got = ::recv(client.socket.get(), bytes.data(), bytes.size(), 0);
  if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (got == 0) return false;
  client.request.append(bytes.data(), static_cast<size_t>(got));
  if (!client.reply.empty()) return client.request.size() <= kMostDropped;
  const auto end = client.request.find("\r\n\r\n");
  if (end != client.request.npos && end <= limits_.head) {
    client.reply = reply_to(std::string_view(client.request).substr(0, end));
  } else if (client.request.size() > limits_.head) {
    client.reply = problem(431);
  }
  client.unsent = client.reply;
  return true;
}

bool HttpServer::write(Client& client) {
  if (client.reply.empty() || client.is_done) return true;
  std::string reason;
  if (!send_some(client.socket.get(), client.unsent, reason)) return false;
  client.is_done = client.unsent.empty();
  poller_.set_writes(client.socket.get(), !client.is_done);
  // The client closes its side when it has the reply.
  return !client.is_done || ::shutdown(client.socket.get(), SHUT_WR) == 0;
}

std::string HttpServer::reply_to(std::string_view head) const {
  auto line = head.substr(0, head.find("\r\n"));
  const auto method = take_word(line);
  const auto target = take_word(line);
  if (!line.starts_with("HTTP/") || !target.starts_with('/')) return problem(400);
  if (!line.starts_with("HTTP/1.")) return problem(505);
  if (method != "GET" && method != "HEAD") return problem(405);
  try {
    return text_of(answer_(std::string(target.substr(0, target.find('?')))), method == "GET");
  } catch (const std::exception& failure) {
    log::warn("[net] a page could not be made: {}", failure.what());
    return problem(500);
  }
}

}  // namespace troika::net
