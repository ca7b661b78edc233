// Endpoints of one machine use Unix sockets, unless another process has taken their name.
#include "troika/net/local_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <thread>

#include "tests/net/endpoints.h"
#include "troika/net/gate.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

int family(const Descriptor& socket) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain;
}

Hello hello_of(const std::string& name) {
  return {
      .name = name, .attempt = 1, .protection = Protection::encrypted, .socket = 0, .sockets = 1};
}

class LocalSockets : public testing::Test {
 protected:
  // The family of the socket that reaches endpoint "b" at the port of "b" on this host.
  int dialed(const std::string& host) {
    const DialPatience patience{soon()};
    auto result = dial("b", {host, port()}, secret_, hello_of("a"), patience);
    const auto* reached = std::get_if<Dialed>(&result);
    EXPECT_TRUE(reached) << describe(std::get<DialFailure>(result));
    return reached ? family(reached->socket) : -1;
  }
  int port() const { return b_->addresses()[0].port; }
  std::unique_ptr<TcpEndpoint> listens_at(const std::string& name, const Address& address) {
    return std::make_unique<TcpEndpoint>(
        TcpOptions{.name = name, .secret = secret_, .listen = {address}});
  }

  const Secret secret_ = Secret::random();
  std::unique_ptr<TcpEndpoint> b_ = listens_at("b", {"127.0.0.1", 0});
};

TEST_F(LocalSockets, ConnectEndpointsOfOneMachine) {
  EXPECT_EQ(dialed("127.0.0.1"), AF_UNIX);
}

TEST_F(LocalSockets, ReachAnEndpointByTheMachinesName) {
  EXPECT_EQ(dialed("localhost"), AF_UNIX);
}

TEST_F(LocalSockets, OfAnotherEndpointWithTheSamePortAreLeftForTcp) {
  const auto other = listens_at("other", {"127.0.0.1", 0});
  b_ = listens_at("b", {"127.0.0.2", other->addresses()[0].port});
  EXPECT_EQ(dialed("127.0.0.2"), AF_INET);
}

TEST_F(LocalSockets, AreNotTriedForOtherMachines) {
  // Reserved for documentation (RFC 5737).
  EXPECT_FALSE(connect_locally("192.0.2.1", port()));
  EXPECT_FALSE(is_this_machine("192.0.2.1"));
  EXPECT_TRUE(is_this_machine("127.0.0.1"));
}

TEST_F(LocalSockets, AreFreeAgainAfterTheEndpoint) {
  const int port = this->port();
  EXPECT_FALSE(listen_locally(port));
  b_.reset();
  EXPECT_TRUE(listen_locally(port));
}

}  // namespace
}  // namespace troika::net
