#include "troika/comm/messages/group_impl.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "troika/base/error.h"
#include "troika/comm/messages/channel.h"

namespace troika::comm {

namespace {

constexpr int kTagBits = 16;

// A part of a group: sends through the whole group, with the part's tag space in the tags.
class PartGroup : public GroupImpl {
 public:
  PartGroup(std::shared_ptr<GroupImpl> whole, GroupInfo info, std::vector<int> members)
      : GroupImpl(std::move(info), whole->lifeline()),
        whole_(std::move(whole)),
        members_(std::move(members)) {}

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return whole_->send(member(peer), tagged(tag), data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return whole_->receive(member(peer), tagged(tag), data, bytes);
  }
  bool send_at_once(int peer, uint32_t tag, std::string_view head,
                    std::string_view payload) override {
    return whole_->send_at_once(member(peer), tagged(tag), head, payload);
  }
  std::unique_ptr<LentMessage> receive_lent(int peer, uint32_t tag, size_t most) override {
    return whole_->receive_lent(member(peer), tagged(tag), most);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    return whole_->send_until_received(member(peer), tagged(tag), data, bytes);
  }
  void hold_sends(int peer) override { whole_->hold_sends(member(peer)); }
  void release_sends(int peer) override { whole_->release_sends(member(peer)); }
  int await_any(uint32_t tag, int first, Deadline deadline) override {
    const int from = whole_->await_any(tagged(tag), member(first), deadline);
    return static_cast<int>(std::ranges::find(members_, from) - members_.begin());
  }
  bool drive() override { return whole_->drive(); }

 private:
  int member(int peer) const { return members_[static_cast<size_t>(peer)]; }
  // In a part of a part, the innermost tag space is used; it is unique.
  uint32_t tagged(uint32_t tag) const {
    return tag_space_of(tag) > 0 ? tag : info().tag_space << kTagBits | tag;
  }

  const std::shared_ptr<GroupImpl> whole_;
  const std::vector<int> members_;
};

}  // namespace

uint32_t tag_spaces_within(int64_t largest) {
  const int64_t spaces = (largest + 1) >> kTagBits;
  if (spaces < 1) {
    throw Error("comm", ErrorKind::usage,
                {.what = "the transport has too few tags for messages",
                 .got = fmt::format("0 to {}", largest),
                 .expected = fmt::format("at least 0 to {}", (1 << kTagBits) - 1),
                 .hint = "choose back end tcp"});
  }
  return static_cast<uint32_t>(std::min<int64_t>(spaces - 1, kMaxGroups));
}

GroupInfo world_on_one_node(std::string backend, int rank, int size) {
  GroupInfo info{.backend = std::move(backend), .rank = rank, .size = size};
  info.nodes.assign(static_cast<size_t>(size), 0);
  return info;
}

GroupImpl::GroupImpl(GroupInfo info, std::shared_ptr<Lifeline> lifeline)
    : info_([&] {
        if (info.world_ranks.empty()) {
          info.world_ranks.resize(static_cast<size_t>(info.size));
          std::iota(info.world_ranks.begin(), info.world_ranks.end(), 0);
        }
        return std::move(info);
      }()),
      lifeline_(std::move(lifeline)) {}

std::string GroupImpl::rank_name(int rank) const {
  return lifeline_->rank_name(info_.world_ranks[static_cast<size_t>(rank)]);
}

void throw_disagreement(const GroupImpl& group, const CollectiveFingerprint& mine, int other,
                        const CollectiveFingerprint& theirs) {
  throw Error("comm", ErrorKind::usage,
              {.what = "ranks called different collectives",
               .got = fmt::format("{}: {}; {}: {}", group.rank_name(group.rank()), mine.describe(),
                                  group.rank_name(other), theirs.describe()),
               .expected = "the same calls in the same order on every rank"});
}

bool GroupImpl::send_at_once(int, uint32_t, std::string_view, std::string_view) {
  return false;
}

namespace {

class BufferedMessage : public LentMessage {
 public:
  BufferedMessage(GroupImpl& impl, int peer, uint32_t tag, size_t most)
      : buffer_(std::make_unique_for_overwrite<char[]>(most)),
        most_(most),
        transfer_(impl.receive(peer, tag, buffer_.get(), most)) {}
  std::string_view wait(Deadline deadline) override {
    transfer_->wait(deadline);
    return {buffer_.get(), most_};
  }
  bool done() const override { return transfer_->done(); }

 private:
  const std::unique_ptr<char[]> buffer_;
  const size_t most_;
  const std::unique_ptr<Transfer> transfer_;  // destroyed before the buffer it writes to
};

}  // namespace

std::unique_ptr<LentMessage> GroupImpl::receive_lent(int peer, uint32_t tag, size_t most) {
  return std::make_unique<BufferedMessage>(*this, peer, tag, most);
}

std::unique_ptr<Transfer> GroupImpl::send_until_received(int peer, uint32_t tag, const void* data,
                                                         size_t bytes) {
  return send(peer, tag, data, bytes);
}

void GroupImpl::hold_sends(int) {}

void GroupImpl::release_sends(int) {}

int GroupImpl::await_any(uint32_t, int, Deadline) {
  TROIKA_CHECK(false, "only back ends that receive from any rank are asked who has sent");
}

bool GroupImpl::others_have_left() const {
  return std::ranges::all_of(info_.world_ranks, [&](int world_rank) {
    return world_rank == lifeline_->world_rank() || lifeline_->has_left(world_rank);
  });
}

void GroupImpl::fail_for_any(uint32_t tag) const {
  lifeline_->require_live(tag_space_of(tag));
  if (others_have_left()) {
    throw Error("comm", ErrorKind::peer, {.what = "all other ranks have left"});
  }
  throw Error("comm", ErrorKind::timeout, {.what = "no message from any rank in time"});
}

void GroupImpl::verify_call(Channel& channel, const Call&, Deadline deadline) {
  const int n = size();
  const auto arriving = channel.receive((rank() + n - 1) % n, 0, nullptr, 0);
  const auto sending = channel.send((rank() + 1) % n, 0, nullptr, 0);
  arriving->wait(deadline);
  sending->wait(deadline);
}

bool GroupImpl::try_native(const Call&, Deadline) {
  return false;
}

std::unique_ptr<DeviceWork> GroupImpl::take_queued() {
  return nullptr;
}

bool GroupImpl::run_within_node(Call, Deadline) {
  return false;
}

at::Tensor GroupImpl::allocate(int64_t count, c10::ScalarType type) {
  return at::empty({count}, type);
}

void GroupImpl::drive_while_waiting(std::function<bool()>) {}

std::shared_ptr<GroupImpl> GroupImpl::split(const std::shared_ptr<GroupImpl>& self, GroupInfo info,
                                            const std::vector<int>& members, Deadline) {
  return std::make_shared<PartGroup>(self, std::move(info), members);
}

}  // namespace troika::comm
