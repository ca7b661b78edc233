#include "troika/net/interface.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "troika/base/error.h"
#include "troika/net/socket.h"

namespace troika::net {
namespace {

TEST(Interface, ByNameOrByAddress) {
  EXPECT_EQ(interface_address("lo", "TEST"), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.1", "TEST"), "127.0.0.1");
  for (const char* wrong : {"no-such-interface", "192.0.2.1", ""}) {
    try {
      interface_address(wrong, "TEST");
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("[net] TEST names no network "
                                                                  "interface with an address"),
                                               testing::HasSubstr("lo")));
    }
  }
}

TEST(OwnAddresses, LeadToThisMachineAndAreNotLoopback) {
  int error = 0;
  const Descriptor open = listen_at("", 0, error);
  const auto addresses = own_addresses("127.0.0.1");
  for (const auto& address : addresses) {
    EXPECT_FALSE(is_loopback(address)) << address;
    EXPECT_EQ(interface_address(address, "TEST"), address);
    EXPECT_TRUE(try_connect(address, port_of(open), Deadline::after(Milliseconds(5000))).socket)
        << address;
  }
  if (addresses.empty()) return;  // a machine without a network
  EXPECT_EQ(own_addresses(addresses.back()).front(), addresses.back()) << "the way to it first";
}

TEST(OwnAddresses, LinkLocalOnesAreKnown) {
  for (const char* address : {"169.254.0.1", "169.254.255.255", "fe80::1%eth0"}) {
    EXPECT_TRUE(is_link_local(address)) << address;
  }
  for (const char* address : {"169.25.4.1", "10.169.254.1", "192.168.0.1", "2001:db8::1"}) {
    EXPECT_FALSE(is_link_local(address)) << address;
  }
}

// A second link-local address of an interface is of no use to other machines.
TEST(OwnAddresses, LinkLocalOnesAreOnlyTheWayToAPeer) {
  const auto addresses = own_addresses("127.0.0.1");
  for (const auto& address : addresses) EXPECT_FALSE(is_link_local(address)) << address;
}

TEST(Listener, OfOneAddressIsNotReachedAtAnother) {
  int error = 0;
  const Descriptor listener = listen_at("127.0.0.2", 0, error);
  ASSERT_TRUE(listener) << error;
  const auto deadline = Deadline::after(Milliseconds(5000));
  EXPECT_TRUE(try_connect("127.0.0.2", port_of(listener), deadline).socket);
  EXPECT_FALSE(try_connect("127.0.0.1", port_of(listener), deadline).socket);
  EXPECT_FALSE(listen_at("192.0.2.1", 0, error));
  EXPECT_NE(error, 0);
  const Descriptor open = listen_at("", 0, error);
  EXPECT_TRUE(try_connect("127.0.0.2", port_of(open), deadline).socket);
}

}  // namespace
}  // namespace troika::net
