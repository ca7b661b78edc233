// The interface of a communication back end: tagged messages between ranks. Collectives are
// implemented once over these messages (algorithms/), so every back end supports every collective.
// A back end with a faster way for a collective overrides try_native().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call/call.h"
#include "troika/comm/diagnostics/lifeline.h"
#include "troika/comm/diagnostics/recorder.h"
#include "troika/comm/messages/device_work.h"

namespace troika::comm {

class Channel;

// The number of groups that a rank may be in at a time besides the world.
inline constexpr uint32_t kMaxGroups = 511;
// Returns that number for a transport whose largest tag is `largest`. Throws Error(usage) if the
// tags do not suffice for a world alone.
uint32_t tag_spaces_within(int64_t largest);

// One message in flight. Its buffer must stay alive until wait() has returned.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Blocks until a receive has its bytes, or the buffer of a send may be reused. Throws Error:
  // `timeout` after the deadline, `peer` when the other rank is gone.
  virtual void wait(Deadline deadline) = 0;
  // Returns true if wait() would return at once; false also if this cannot be known.
  virtual bool done() { return false; }
  // Whether the buffer of a send may be reused, even if wait() would still block.
  virtual bool has_copied() { return done(); }
};

// A send whose buffer was already reusable when send() returned.
class CompletedSend : public Transfer {
 public:
  void wait(Deadline) override {}
  bool done() override { return true; }
};

// A message in flight that is received into memory of the back end.
class LentMessage {
 public:
  virtual ~LentMessage() = default;
  // Blocks until the message has arrived, and returns its bytes. They stay valid until let_go().
  // Throws the errors of Transfer::wait().
  virtual std::string_view wait(Deadline deadline) = 0;
  // Returns true if wait() would return at once; false also if this cannot be known.
  virtual bool done() const { return false; }
  // Releases the bytes. Called at most once; otherwise the destructor releases them.
  virtual void let_go() {}
};

// Facts about a group, given to its implementation at construction.
struct GroupInfo {
  std::string backend;
  int rank = 0;
  int size = 1;
  // The node of each rank; ranks of one node share memory.
  std::vector<int> nodes = {};
  // 0 for a world; different for any two groups that any rank has ever been in.
  uint32_t id = 0;
  // Separates the messages of groups that exist at the same time: 0 for a world; different for any
  // two of its groups that share a rank; at most `tag_spaces`.
  uint32_t tag_space = 0;
  uint32_t tag_spaces = kMaxGroups;
  // The world rank of each rank.
  std::vector<int> world_ranks = {};
  // Whether any thread may call the implementation; otherwise only the thread that made it may.
  bool any_thread = true;
  // Whether await_any() is supported.
  bool receives_any = false;
  // Whether the other ranks do not exist: messages end at once, and move nothing.
  bool is_lone = false;
  // Whether a part of this group can fail without the rest of the world.
  bool can_fail_alone = false;
  // Whether a failure of this group ends only this group (NewGroupOptions::fails_alone). Inherited
  // by its parts.
  bool fails_alone = false;
  // The type of device whose memory try_native() accepts.
  c10::DeviceType native_device = c10::DeviceType::CPU;
};

// Returns the GroupInfo of a world whose ranks are all on one node.
GroupInfo world_on_one_node(std::string backend, int rank, int size);

// Messages between the ranks of one group. Messages of one (sender, receiver, tag) arrive in the
// order they were sent. A receive must have room for the message: a longer message may end the
// process, so collectives use a Channel, which checks lengths first. Only a receive of kMessageTag
// may get a longer message; its wait() then throws.
//
// Peers are ranks of the group. The low 16 bits of a tag are the kind of the message plus an
// offset; the higher bits are the tag space of a part of the group. Several threads may call (see
// GroupInfo::any_thread). When the lifeline is cut, or the group of the tag space has failed alone,
// pending waits fail with the cause, and messages that nobody received are discarded. Destroying a
// receive of an edge before its message has arrived cancels the receive: the next receive gets that
// message. Destroy the latest receive first.
class GroupImpl {
 public:
  GroupImpl(GroupInfo info, std::shared_ptr<Lifeline> lifeline);
  virtual ~GroupImpl() = default;
  GroupImpl(const GroupImpl&) = delete;
  GroupImpl& operator=(const GroupImpl&) = delete;

  const GroupInfo& info() const { return info_; }
  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  const std::shared_ptr<Lifeline>& lifeline() const { return lifeline_; }
  // Returns the name of a rank of this group, as Lifeline::rank_name() does.
  std::string rank_name(int rank) const;

  virtual std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data,
                                         size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) = 0;
  // Sends one message that is `head` followed by `payload`, and returns true; both may then be
  // changed. Returns false, with nothing sent, if sending would block. The default returns false.
  virtual bool send_at_once(int peer, uint32_t tag, std::string_view head,
                            std::string_view payload);
  // Receives a message of at most `most` bytes without a buffer of the caller. The view that wait()
  // returns is at least as long as the message. The default allocates a buffer.
  virtual std::unique_ptr<LentMessage> receive_lent(int peer, uint32_t tag, size_t most);
  // Like send(), for a sender that bounds the messages not yet received: the transfer is done only
  // when the message has been received, unless the back end itself bounds the messages it keeps.
  // The default calls send().
  virtual std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                        size_t bytes);
  // Sends to `peer` that are started between these two calls may leave together at the second call.
  // Calls nest. By default each send leaves at once.
  virtual void hold_sends(int peer);
  virtual void release_sends(int peer);
  // Blocks until a message with this tag has arrived for which no receive was started, and returns
  // its sender. Where the back end can choose, it takes the first rank from `first` on. Called only
  // if GroupInfo::receives_any.
  virtual int await_any(uint32_t tag, int first, Deadline deadline);

  // Returns when every rank, or at least the neighbour, has made a call that agrees with this one.
  // Throws Error(usage) if calls differ. By default neighbours in a ring compare over `channel`,
  // which belongs to this call: where ranks differ, some neighbours differ and find out, even if no
  // other message is due between ranks that differ.
  virtual void verify_call(Channel& channel, const Call& call, Deadline deadline);
  // Called after verify_call(). Carries out the whole call and returns true, or moves nothing and
  // returns false. Returns the same on every rank. A call on a device may be only queued on the
  // current stream when this returns; take_queued() then returns it.
  virtual bool try_native(const Call& call, Deadline deadline);
  // Returns the work that the last try_native() has queued on a device, once; null if it was done.
  virtual std::unique_ptr<DeviceWork> take_queued();
  // Carries out a call among the ranks of this rank's node, in their order and without messages,
  // and returns true; or moves nothing and returns false, the same for every call on every rank of
  // the group. The ranks of a node must make the same calls in the same order, and only inside
  // collectives of this group. `call` is a reduce_scatter, all_gather, broadcast or barrier on host
  // memory; its fingerprint needs no sequence number.
  virtual bool run_within_node(Call call, Deadline deadline);

  // Makes progress on messages in flight, and returns whether any still needs it. Called while this
  // rank waits for something else. By default messages progress by themselves.
  virtual bool drive() { return false; }
  // Sets a function that is called while this rank waits in this group or in a part of it. Called
  // by a routed group (routed.h), before the first call on this group, to progress its messages
  // between nodes.
  virtual void drive_while_waiting(std::function<bool()> drive);

  // Returns `count` elements of uninitialised host memory from which this group communicates
  // fastest. The tensor may outlive the group.
  virtual at::Tensor allocate(int64_t count, c10::ScalarType type);
  // Returns the implementation for a part of this group's ranks. All members call it at once. By
  // default the part sends its messages through this group under other tags.
  virtual std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>& self, GroupInfo info,
                                           const std::vector<int>& members, Deadline deadline);

 protected:
  // Whether all other ranks have left normally.
  bool others_have_left() const;
  // Throws the reason why await_any() of that tag ended without a message.
  [[noreturn]] void fail_for_any(uint32_t tag) const;

 private:
  const GroupInfo info_;
  const std::shared_ptr<Lifeline> lifeline_;
};

// Kinds of messages; a receive of one kind never matches another kind. Collectives have frames and
// payloads, plus the lane. Messages between two ranks have heads and data; edges (edge.h) have
// frames and payloads. Both add the caller's tag.
inline constexpr uint32_t kPayloadTag = 0xc000;
inline constexpr uint32_t kCollectiveTag = 0x8000;
inline constexpr uint32_t kEdgeFrameTag = 0x6000;
inline constexpr uint32_t kHeadTag = 0x4000;
inline constexpr uint32_t kEdgePayloadTag = 0x2000;
inline constexpr uint32_t kMessageTag = 0;
inline constexpr int kLargestTag = 0x1ffe;
// The tag of the messages by which the members of a new group rendezvous, sent in the parent group.
inline constexpr int kNewGroupTag = 0x1fff;
// Returns the tag space in a tag of a world's messages.
inline uint32_t tag_space_of(uint32_t tag) {
  return tag >> 16;
}
// Whether the tag is of kind kMessageTag.
inline bool is_message(uint32_t tag) {
  return (tag & 0xe000) == kMessageTag;
}
// Whether the tag belongs to an edge.
inline bool is_edge(uint32_t tag) {
  return (tag & 0xa000) == kEdgePayloadTag;
}

// Throws the Error(usage) for ranks of the group that made different calls: this rank and `other`.
[[noreturn]] void throw_disagreement(const GroupImpl& group, const CollectiveFingerprint& mine,
                                     int other, const CollectiveFingerprint& theirs);

}  // namespace troika::comm
