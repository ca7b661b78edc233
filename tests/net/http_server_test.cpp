#include "troika/net/http_server.h"

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>

#include "troika/base/error.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const Milliseconds kLong{60'000};
constexpr size_t kLongPage = size_t{64} << 20;

class Pages : public testing::Test {
 protected:
  void serve(HttpLimits limits = {}) {
    server_.emplace(
        Address{"127.0.0.1", 0},
        [](const std::string& path) -> HttpReply {
          if (path == "/broken") throw std::runtime_error("broken");
          if (path == "/long") return {.body = std::string(kLongPage, 'x')};
          if (path != "/") return {.status = 404, .body = "nothing"};
          return {.type = "text/html", .body = "<p>", .policy = "default-src 'self'"};
        },
        limits);
  }
  Descriptor connect() {
    auto attempt = try_connect("127.0.0.1", server_->address().port, Deadline::after(kLong));
    EXPECT_TRUE(attempt.socket) << attempt.problem;
    return std::move(attempt.socket);
  }
  static void send(const Descriptor& socket, std::string_view bytes) {
    std::string reason;
    while (!bytes.empty() && send_some(socket.get(), bytes, reason)) {
      if (!bytes.empty()) wait_for(socket.get(), POLLOUT, Deadline::after(kLong));
    }
  }
  // Returns all that comes until the server closes the connection.
  static std::string read(const Descriptor& socket) {
    std::string bytes, reason;
    while (wait_for(socket.get(), POLLIN, Deadline::after(kLong)) &&
           receive(socket.get(), bytes, reason)) {
    }
    return bytes;
  }
  std::string ask(const std::string& request) {
    const auto socket = connect();
    send(socket, request);
    return read(socket);
  }
  std::string get(const std::string& target) {
    return ask("GET " + target + " HTTP/1.1\r\nHost: here\r\n\r\n");
  }

  std::optional<HttpServer> server_;
};

TEST_F(Pages, AreSentWithTheirPolicy) {
  serve();
  EXPECT_THAT(get("/?now=1"),
              AllOf(StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 3\r\n"
                               "Content-Security-Policy: default-src 'self'\r\n"),
                    EndsWith("Connection: close\r\n\r\n<p>")));
  EXPECT_THAT(ask("HEAD / HTTP/1.1\r\n\r\n"),
              AllOf(HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
  EXPECT_THAT(get("/other"), AllOf(StartsWith("HTTP/1.1 404 Not Found"), EndsWith("nothing")));
  EXPECT_THAT(get("/broken"), AllOf(StartsWith("HTTP/1.1 500 "), Not(HasSubstr("broken"))));
  const auto text = get("/long");
  EXPECT_EQ(text.size() - text.find("\r\n\r\n") - 4, kLongPage);
}

TEST_F(Pages, AreNotSentForBadRequests) {
  serve();
  EXPECT_THAT(ask("POST / HTTP/1.1\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_THAT(ask("GET / HTTP/3\r\n\r\n"), StartsWith("HTTP/1.1 505 "));
  for (const auto* const request : {"\r\n\r\n", "GET\r\n\r\n", "GET http://here/ HTTP/1.1\r\n\r\n",
                                    "GET /\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_THAT(ask(request), StartsWith("HTTP/1.1 400 ")) << request;
  }
  EXPECT_THAT(ask(std::string("GET / HTTP/1.1\r\n\0 \xff\r\n\r\n", 23)),
              StartsWith("HTTP/1.1 200 "));
}

// The server reads no more of a request without an end than it must.
TEST_F(Pages, AreNotSentForRequestsThatAreTooLong) {
  serve();
  EXPECT_THAT(ask("GET /" + std::string(100'000, 'a')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n" + std::string(9000, 'a') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431 "));
  const auto endless = connect();
  send(endless, std::string(64 << 20, 'a'));
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Pages, AreSentToOthersWhileManyClientsAreSilent) {
  // Time alone closes none of them.
  serve({.connections = 8, .patience = Milliseconds(std::chrono::hours(24))});
  std::vector<Descriptor> silent;
  for (int i = 0; i < 40; ++i) {
    silent.push_back(connect());
    send(silent.back(), "GET / HT");
  }
  EXPECT_THAT(get("/"), StartsWith("HTTP/1.1 200 "));
  // The oldest were closed for the later ones, one for the request above.
  for (size_t i = 0; i <= 40 - 8; ++i) EXPECT_EQ(read(silent[i]), "") << i;
  send(silent.back(), "TP/1.1\r\n\r\n");
  EXPECT_THAT(read(silent.back()), StartsWith("HTTP/1.1 200 "));
}

TEST_F(Pages, EndWithThePatienceOfTheServer) {
  serve({.patience = Milliseconds(50)});
  const auto silent = connect();
  EXPECT_EQ(read(silent), "");
  const auto slow = connect();
  send(slow, "GET /long HTTP/1.1\r\n\r\n");
  // When the server gives this one up, it has given up the one before, of whose page nothing was
  // read yet, and which no buffer has room for.
  EXPECT_EQ(read(connect()), "");
  EXPECT_LT(read(slow).size(), kLongPage);
}

TEST_F(Pages, NeedAFreePort) {
  serve();
  try {
    const HttpServer second(server_->address(), [](const std::string&) { return HttpReply(); });
    ADD_FAILURE() << "two servers at one port";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot serve pages at port "),
                                    HasSubstr("got address already in use, expected ")));
  }
}

}  // namespace
}  // namespace troika::net
