// The memory of back ends that predictions count.
#include "troika/comm/mailboxes.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "troika/net/frame.h"

namespace troika::comm {
namespace {

TEST(Mailboxes, AutoOnOneNodeIsShm) {
  for (const int ranks : {2, 8}) {
    EXPECT_EQ(most_mailbox_bytes("auto", ranks), most_mailbox_bytes("shm", ranks));
    EXPECT_GT(most_mailbox_bytes("auto", ranks), 0);
  }
  EXPECT_EQ(most_mailbox_bytes("auto", 1), 0);
}

TEST(Mailboxes, AutoOnSeveralNodesIsShmInsideAndTcpBetweenThem) {
  const auto credit = static_cast<int64_t>(net::kCreditWindow);
  EXPECT_EQ(most_mailbox_bytes("auto", 8, 2), most_mailbox_bytes("shm", 4) + 4 * credit);
  EXPECT_EQ(most_mailbox_bytes("auto", 64, 16), most_mailbox_bytes("shm", 4) + 60 * credit);
  // One node has 3 ranks, the other has 2 ranks and 3 other ranks elsewhere.
  EXPECT_EQ(most_mailbox_bytes("auto", 5, 2), most_mailbox_bytes("shm", 3) + 3 * credit);
}

TEST(Mailboxes, ANamedBackEndDoesNotDependOnNodes) {
  EXPECT_EQ(most_mailbox_bytes("tcp", 8, 2), most_mailbox_bytes("tcp", 8));
  EXPECT_EQ(most_mailbox_bytes("gloo", 8, 2), 0);
  EXPECT_TRUE(copies_messages("shm") && copies_messages("auto"));
  EXPECT_FALSE(copies_messages("auto", 2) || copies_messages("tcp") || copies_messages("mpi"));
  EXPECT_ERROR(most_mailbox_bytes("tpc", 8, 2), ErrorKind::usage,
               "[comm] unknown back end; got tpc (did you mean tcp?)");
}

}  // namespace
}  // namespace troika::comm
