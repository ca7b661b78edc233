// The seam a communication back end fills: tagged messages between ranks. Collectives are written
// once over these (algorithms/), so nothing is "not supported" on any back end; one that knows a
// faster way for a collective takes it in shortcut().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call.h"
#include "troika/comm/lifeline.h"
#include "troika/comm/recorder.h"

namespace troika::comm {

class Channel;

// How many groups a rank may be in at a time besides the world.
inline constexpr uint32_t kMaxGroups = 511;
// The same where a transport has no larger tag than `largest`. Throws Error(usage) when that is not
// enough for a world alone.
uint32_t tag_spaces_within(int64_t largest);

// One message under way. The buffer it was started with must stay alive until wait() has returned.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until a receive has its bytes, or a send's buffer may be reused. Throws Error: `timeout`
  // past the deadline, `peer` when the other rank is gone.
  virtual void wait(Deadline deadline) = 0;
  // Whether wait() would return at once; false where that cannot be told.
  virtual bool done() { return false; }
  // Whether the buffer of a send may be reused, though wait() may still block.
  virtual bool has_copied() { return done(); }
};

// A send whose buffer could be reused when it was called.
class CompletedSend : public Transfer {
 public:
  void wait(Deadline) override {}
  bool done() override { return true; }
};

// A message under way that is received into memory of the back end.
class LentMessage {
 public:
  virtual ~LentMessage() = default;
  // Blocks until the message is here, and returns its bytes, which stay until let_go(). Errors as
  // those of Transfer::wait().
  virtual std::string_view wait(Deadline deadline) = 0;
  // Whether wait() would return at once; false where that cannot be told.
  virtual bool done() const { return false; }
  // The bytes are not needed any more. Called at most once; else the destructor does it.
  virtual void let_go() {}
};

// The facts about a group that its implementation is told once, when it is made.
struct Station {
  std::string backend;
  int rank = 0;
  int size = 1;
  // The number of each rank's node; ranks of one node share memory.
  std::vector<int> nodes = {};
  // 0 for a world; different for any two groups that any rank has ever been in.
  uint32_t id = 0;
  // Tells the messages of groups that exist at the same time apart: 0 for a world; different for
  // any two of its groups that share a rank; at most `tag_spaces`.
  uint32_t tag_space = 0;
  uint32_t tag_spaces = kMaxGroups;
  // The ranks' ranks in the world.
  std::vector<int> world_ranks = {};
  // Whether any thread may call it; else only the thread that made it.
  bool any_thread = true;
  // Whether await_any() can tell.
  bool receives_any = false;
  // Whether the failure of one of its parts can be kept from the rest of the world.
  bool can_fail_alone = false;
  // Whether this group is such a part, or a part of one: its failure ends it alone.
  bool fails_alone = false;
  // Whether shortcut() wants to see calls with buffers in CUDA memory.
  bool takes_cuda = false;
};

// The station of a world whose ranks are all on one node.
Station world_on_one_node(std::string backend, int rank, int size);

// Messages between the ranks of one group. Messages of one (sender, receiver, tag) arrive in the
// order they were sent. A receive must have room for what is sent: a longer message may end the
// process, so collectives go through a Channel, which makes sure of it. Only a receive of
// kMessageTag may meet a longer message; its wait then throws. Peers are ranks of the group, tags
// are kinds of messages and what may be added to them, and the tag space of a part of the group in
// the bits from 16 on. Calls may come from several threads (see Station::any_thread). When the
// lifeline is cut, or the group of the tag space has failed alone, waits under way fail with the
// cause, and messages that nobody received are as if they had never been. A receive of an edge that
// is destroyed before its message came is taken back: the next one gets that message. The latest
// goes first.
class GroupImpl {
 public:
  GroupImpl(Station station, std::shared_ptr<Lifeline> lifeline);
  virtual ~GroupImpl() = default;
  GroupImpl(const GroupImpl&) = delete;
  GroupImpl& operator=(const GroupImpl&) = delete;

  const Station& station() const { return station_; }
  int rank() const { return station_.rank; }
  int size() const { return station_.size; }
  const std::shared_ptr<Lifeline>& lifeline() const { return lifeline_; }
  // A rank of this group as Lifeline::rank_name() says it.
  std::string rank_name(int rank) const;

  virtual std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data,
                                         size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;
  // Sends a message that is the two parts one behind the other, and returns true: both may then be
  // changed. Or returns false, having sent nothing, where that would block. By default it does.
  virtual bool send_at_once(int peer, uint32_t tag, std::string_view head,
                            std::string_view payload);
  // The same as receive() of at most so many bytes, without a buffer. What wait() returns is at
  // least as long as the message. By default it has a buffer of its own.
  virtual std::unique_ptr<LentMessage> receive_lent(int peer, uint32_t tag, size_t most);
  // The same as send(), for a sender that bounds the messages that were not received: the transfer
  // is done no sooner than the message is received, except where the back end itself bounds what it
  // keeps of such messages. By default it is send().
  virtual std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                        size_t bytes);
  // Blocks until a message with this tag is here for which no receive was started, and returns the
  // rank that sent it: the first from `first` on, where the back end has the choice. Only called
  // where Station::receives_any.
  virtual int await_any(uint32_t tag, int first, Deadline deadline);

  // Returns once every rank has come with a call that agrees with this one, or at least the
  // neighbour has; throws Error(usage) for a difference. By default neighbours in a ring compare
  // over `channel`, which is this call's: where ranks differ, some neighbours do, and find out even
  // if no other message is due between ranks that differ.
  virtual void agree(Channel& channel, const Call& call, Deadline deadline);
  // After agree(): carries out the whole call and returns true, or returns false, the same on every
  // rank, having moved nothing.
  virtual bool shortcut(const Call& call, Deadline deadline);
  // Carries out a call among the ranks of this rank's node alone, in their order and without
  // messages, and returns true; or returns false, the same for every call on every rank of the
  // group, having moved nothing. The ranks of a node must come with the same calls in the same
  // order, only from inside collectives of this group. `call` is a reduce_scatter, all_gather,
  // broadcast or barrier on host memory; its print needs no number.
  virtual bool run_within_node(Call call, Deadline deadline);

  // Moves messages under way on, and returns whether any still need it; called where this rank
  // waits for something else. By default they move by themselves.
  virtual bool drive() { return false; }
  // Has `drive` called while this rank waits in this group or in a part of it. Called before the
  // first call on the group, by the group that carries messages between its nodes.
  virtual void drive_while_waiting(std::function<bool()> drive);

  // `count` elements of uninitialised host memory, from which this group communicates fastest. May
  // outlive the group.
  virtual at::Tensor allocate(int64_t count, c10::ScalarType type);
  // The implementation for a part of this group's ranks, called by all members at once. By default
  // its messages are this group's under other tags.
  virtual std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>& self, Station station,
                                           const std::vector<int>& members, Deadline deadline);

 protected:
  // Whether all other ranks have parted in peace.
  bool others_have_left() const;
  // Throws the reason why await_any() of that tag ends without a message.
  [[noreturn]] void fail_for_any(uint32_t tag) const;

 private:
  const Station station_;
  const std::shared_ptr<Lifeline> lifeline_;
};

// Kinds of messages, which do not meet: of collectives, the frames and the payloads, to which a
// lane is added; of two ranks, the heads and the data, and of edges (edge.h), the frames and the
// payloads, to which the caller's tag is added.
inline constexpr uint32_t kPayloadTag = 0xc000;
inline constexpr uint32_t kCollectiveTag = 0x8000;
inline constexpr uint32_t kEdgeFrameTag = 0x6000;
inline constexpr uint32_t kHeadTag = 0x4000;
inline constexpr uint32_t kEdgePayloadTag = 0x2000;
inline constexpr uint32_t kMessageTag = 0;
inline constexpr int kLargestTag = 0x1ffe;
// The tag of the messages by which the members of a new group meet, in the group that they are
// ranks of.
inline constexpr int kNewGroupTag = 0x1fff;
// The tag space that a tag of a world's messages has.
inline uint32_t tag_space_of(uint32_t tag) {
  return tag >> 16;
}
// Whether a tag is of kind kMessageTag.
inline bool is_message(uint32_t tag) {
  return (tag & 0xe000) == kMessageTag;
}
// Whether a tag is of an edge.
inline bool is_edge(uint32_t tag) {
  return (tag & 0xa000) == kEdgePayloadTag;
}

// Throws the Error(usage) for ranks of the group that made different calls: this one, and `other`.
[[noreturn]] void throw_disagreement(const GroupImpl& group, const Print& mine, int other,
                                     const Print& theirs);

}  // namespace troika::comm
