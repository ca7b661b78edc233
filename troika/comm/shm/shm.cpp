#include "troika/comm/shm/shm.h"

#include <c10/util/SmallVector.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/base/text.h"
#include "troika/comm/shm/inbox.h"
#include "troika/comm/shm/native_collectives.h"
#include "troika/comm/shm/outbox.h"

namespace troika::comm::shm {

namespace {

// How long a group that is destroyed waits for the other ranks to receive its messages.
constexpr std::chrono::seconds kDrainTime{5};

// The location of a segment, as its owner sends it to the other ranks.
struct Address {
  int64_t pid = 0;
  int64_t fd = 0;
  int64_t bytes = 0;

  Segment open() const {
    return Segment::open(static_cast<pid_t>(pid), static_cast<int>(fd), static_cast<size_t>(bytes));
  }
  std::string text() const { return fmt::format("{} {} {}", pid, fd, bytes); }
  static Address from_text(const std::string& text) {
    Address address;
    std::sscanf(text.c_str(), "%ld %ld %ld", &address.pid, &address.fd, &address.bytes);
    return address;
  }
};

Address address_of(const Segment& segment) {
  return {::getpid(), segment.fd(), static_cast<int64_t>(segment.bytes())};
}

class ShmGroup : public GroupImpl {
 public:
  ShmGroup(GroupInfo info, std::shared_ptr<Lifeline> lifeline, std::shared_ptr<Presence> presence,
           std::shared_ptr<Board> board, std::shared_ptr<Arena> arena, std::vector<int> arena_ranks,
           Deadline deadline, std::shared_ptr<GroupImpl> whole = nullptr)
      : GroupImpl(std::move(info), std::move(lifeline)),
        whole_(std::move(whole)),
        presence_(std::move(presence)),
        board_(std::move(board)),
        arena_(std::move(arena)),
        arena_ranks_(std::move(arena_ranks)),
        outbox_(board_, arena_),
        inbox_(board_, arena_, arena_ranks_),
        native_(board_, arena_, arena_ranks_, !this->info().fails_alone) {
    native_.exchange_staging(deadline);
  }
  // The other ranks may still be reading this rank's memory.
  ~ShmGroup() override {
    const auto drained = [&] { return outbox_.all_received() && native_.all_finished(); };
    try {
      board_->await(drained, Deadline::after(kDrainTime),
                    [] { return "the others to take what was sent"; });
      outbox_.release();
      native_.release();
    } catch (const Error&) {
      // The memory stays allocated: a leak is better than corrupt data at a peer.
    }
    // After a failure, the other ranks get the cause through the control connection; leave() would
    // only show that this rank is gone.
    if (!this->lifeline()->is_cut()) board_->leave();
    if (info().id != 0) return;
    presence_->part();
    lifeline()->leave();
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    outbox_.send(peer, {.tag = tag, .payload = view(data, bytes)});
    return std::make_unique<CompletedSend>();
  }
  bool send_at_once(int peer, uint32_t tag, std::string_view head,
                    std::string_view payload) override {
    outbox_.send(peer, {.tag = tag, .head = head, .payload = payload});
    return true;
  }
  std::unique_ptr<LentMessage> receive_lent(int peer, uint32_t tag, size_t most) override {
    return std::make_unique<Lent>(*this, peer, tag, most);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return std::make_unique<Arriving>(*this, peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    auto receipt =
        outbox_.send(peer, {.tag = tag, .payload = view(data, bytes), .wants_receipt = true});
    return std::make_unique<Leaving>(*this, peer, std::move(receipt));
  }

  int await_any(uint32_t tag, int first, Deadline deadline) override {
    const auto from = inbox_.await_any(tag, first, deadline, [this] { return others_have_left(); });
    if (!from) fail_for_any(tag);
    return *from;
  }

  void verify_call(Channel&, const Call& call, Deadline deadline) override {
    const int64_t sequence = call.fingerprint.sequence;
    native_.publish(call);
    c10::SmallVector<bool, 64> come(static_cast<size_t>(size()));
    size_t missing = come.size();
    const auto all_come = [&] {
      for (int r = 0; r < size(); ++r) {
        const auto index = static_cast<size_t>(r);
        if (come[index] || !board_->has_published(r, sequence)) continue;
        const CollectiveFingerprint& theirs = board_->slot(r, sequence).fingerprint;
        if (!call.fingerprint.matches(theirs)) {
          throw_disagreement(*this, call.fingerprint, r, theirs);
        }
        come[index] = true;
        --missing;
      }
      return missing == 0;
    };
    board_->await(all_come, deadline, [] { return "the other ranks"; });
  }
  bool try_native(const Call& call, Deadline deadline) override {
    return native_.run(call, deadline);
  }

  at::Tensor allocate(int64_t count, c10::ScalarType type) override {
    return arena_->tensor(count, type);
  }

  void drive_while_waiting(std::function<bool()> drive) override {
    board_->drive_while_waiting(std::move(drive));
  }

  // Makes a separate board, so that the part's calls do not mix with this group's; the arena is
  // shared.
  std::shared_ptr<GroupImpl> split(const std::shared_ptr<GroupImpl>& self, GroupInfo info,
                                   const std::vector<int>& members, Deadline deadline) override {
    const int part_rank = info.rank;
    const int part_size = info.size;
    const uint32_t tag = info.tag_space << 16 | kCollectiveTag;
    std::optional<Segment> segment;
    Address address;
    if (part_rank == 0) {
      segment = Segment::create(Board::bytes_for(part_size));
      address = address_of(*segment);
      for (size_t m = 1; m < members.size(); ++m) {
        outbox_.send(members[m], {.tag = tag, .payload = view(&address, sizeof(Address))});
      }
    } else {
      receive(members.front(), tag, &address, sizeof(Address))->wait(deadline);
      segment = address.open();
    }
    std::vector<int> arena_ranks;
    for (const int m : members) arena_ranks.push_back(arena_ranks_[static_cast<size_t>(m)]);
    auto board = std::make_shared<Board>(*std::move(segment), part_rank, part_size, info.tag_space,
                                         presence_);
    board->drive_while_waiting(board_->drive());
    return std::make_shared<ShmGroup>(std::move(info), lifeline(), presence_, std::move(board),
                                      arena_, std::move(arena_ranks), deadline, self);
  }

 private:
  bool has_left(int peer) const {
    return board_->has_left(peer) ||
           lifeline()->has_left(info().world_ranks[static_cast<size_t>(peer)]);
  }

  static std::string_view view(const void* data, size_t bytes) {
    return {static_cast<const char*>(data), bytes};
  }

  class Leaving : public Transfer {
   public:
    Leaving(ShmGroup& group, int peer, Outbox::Receipt receipt)
        : group_(group), peer_(peer), receipt_(std::move(receipt)) {}
    void wait(Deadline deadline) override {
      group_.outbox_.await_received(
          peer_, receipt_, deadline, [&] { return group_.rank_name(peer_); },
          [&] { return group_.has_left(peer_); });
    }
    bool done() override { return group_.outbox_.is_received(peer_, receipt_); }
    bool has_copied() override { return true; }

   private:
    ShmGroup& group_;
    const int peer_;
    const Outbox::Receipt receipt_;
  };

  class Lent : public LentMessage {
   public:
    Lent(ShmGroup& group, int peer, uint32_t tag, size_t most)
        : group_(group), most_(most), expected_(group.inbox_.expect(peer, tag)) {}
    ~Lent() override {
      if (!message_) group_.inbox_.forget(expected_);
      let_go();
    }
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    std::string_view wait(Deadline deadline) override {
      await(deadline);
      if (message_->is_cell) return {message_->data(), bytes_};
      // A message for which no cell was free.
      copy_ = std::make_unique_for_overwrite<char[]>(bytes_);
      copy_out(copy_.get(), deadline);
      return {copy_.get(), bytes_};
    }
    void wait_into(char* into, Deadline deadline) {
      await(deadline);
      if (message_->is_cell) {
        if (bytes_ > 0) std::memcpy(into, message_->data(), bytes_);
      } else {
        copy_out(into, deadline);
      }
      let_go();
    }
    void let_go() override {
      if (std::exchange(is_held_, false)) group_.inbox_.take(expected_.peer, *message_);
    }

   private:
    void await(Deadline deadline) {
      const int peer = expected_.peer;
      const auto who = [&] { return group_.rank_name(peer); };
      message_ =
          &group_.inbox_.await(expected_, deadline, who, [&] { return group_.has_left(peer); });
      is_held_ = true;
      bytes_ = Inbox::length_of(*message_, most_, who);
    }
    void copy_out(char* into, Deadline deadline) {
      const int peer = expected_.peer;
      group_.inbox_.copy_out(peer, *message_, bytes_, into, deadline,
                             [&] { return group_.rank_name(peer); });
    }

    ShmGroup& group_;
    const size_t most_;
    const Inbox::Expected expected_;
    Envelope* message_ = nullptr;
    size_t bytes_ = 0;  // of the message
    bool is_held_ = false;
    std::unique_ptr<char[]> copy_;
  };

  class Arriving : public Transfer {
   public:
    Arriving(ShmGroup& group, int peer, uint32_t tag, void* data, size_t bytes)
        : message_(group, peer, tag, bytes), data_(static_cast<char*>(data)) {}
    void wait(Deadline deadline) override { message_.wait_into(data_, deadline); }

   private:
    Lent message_;
    char* const data_;
  };

  const std::shared_ptr<GroupImpl> whole_;    // for a part: keeps the whole group, whose destructor
                                              // leaves the world
  const std::shared_ptr<Presence> presence_;  // of the world's ranks on this machine
  const std::shared_ptr<Board> board_;
  const std::shared_ptr<Arena> arena_;
  const std::vector<int> arena_ranks_;
  Outbox outbox_;
  Inbox inbox_;
  NativeCollectives native_;
};

// Returns the ranks of this rank's node, ascending.
std::vector<int> neighbours(const Meeting& meeting) {
  const int mine = meeting.nodes[static_cast<size_t>(meeting.environment.rank)];
  std::vector<int> ranks;
  for (size_t r = 0; r < meeting.nodes.size(); ++r) {
    if (meeting.nodes[r] == mine) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

// Returns the first problem of any rank of the world, or an empty string; the same on all ranks.
std::string verdict(const Meeting& meeting, const std::string& problem, Deadline deadline) {
  auto& rendezvous = *meeting.rendezvous;
  const auto key = [](int rank) { return fmt::format("comm/shm/problem/{}", rank); };
  rendezvous.set(key(meeting.environment.rank), problem);
  if (meeting.environment.rank == 0) {
    std::string first;
    for (int r = 0; r < meeting.environment.world_size; ++r) {
      const auto theirs = rendezvous.get(key(r), deadline);
      if (first.empty() && !theirs.empty()) first = fmt::format("rank {}: {}", r, theirs);
    }
    rendezvous.set("comm/shm/verdict", first);
  }
  return rendezvous.get("comm/shm/verdict", deadline);
}

struct Connected {
  std::shared_ptr<GroupImpl> group;
  std::string problem;
};

Connected connect(const Meeting& meeting, Deadline deadline) {
  const auto ranks = neighbours(meeting);
  const int size = static_cast<int>(ranks.size());
  const int rank =
      static_cast<int>(std::ranges::find(ranks, meeting.environment.rank) - ranks.begin());
  const auto key = fmt::format("comm/shm/segments/{}", ranks.front());
  std::vector<Segment> segments;  // in the order of `sizes`
  std::string problem;
  try {
    if (rank == 0) {
      const size_t sizes[] = {Presence::bytes_for(size), Board::bytes_for(size),
                              Arena::directory_bytes(size)};
      std::vector<std::string> addresses;
      for (const size_t bytes : sizes) {
        addresses.push_back(address_of(segments.emplace_back(Segment::create(bytes))).text());
      }
      meeting.rendezvous->set(key, fmt::format("{}", fmt::join(addresses, "\n")));
    } else {
      for (const auto& address : split(meeting.rendezvous->get(key, deadline), '\n')) {
        segments.push_back(Address::from_text(address).open());
      }
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::peer || error.kind() == ErrorKind::timeout) throw;
    problem = error.what();
    if (rank == 0) meeting.rendezvous->set(key, "0 0 0");
  }
  if (auto first = verdict(meeting, problem, deadline); !first.empty()) return {nullptr, first};
  std::vector<int> arena_ranks(ranks.size());
  std::iota(arena_ranks.begin(), arena_ranks.end(), 0);
  GroupInfo info{.backend = "shm",
                 .rank = rank,
                 .size = size,
                 .world_ranks = ranks,
                 .receives_any = true,
                 .can_fail_alone = true};
  info.nodes.assign(ranks.size(), 0);
  auto presence = std::make_shared<Presence>(std::move(segments[0]), rank, ranks, meeting.lifeline);
  auto board = std::make_shared<Board>(std::move(segments[1]), rank, size, 0, presence);
  auto arena = std::make_shared<Arena>(std::move(segments[2]), rank, size, meeting.lifeline);
  return {std::make_shared<ShmGroup>(std::move(info), meeting.lifeline, std::move(presence),
                                     std::move(board), std::move(arena), std::move(arena_ranks),
                                     deadline),
          ""};
}

}  // namespace

std::string why_unavailable() {
  return {};
}

// Each rank's part of the board: its own slots, and the lanes of the messages that it sends.
int64_t most_mailbox_bytes(int ranks) {
  return static_cast<int64_t>(NativeCollectives::staging_bytes() + BlockPool::kMostBytes +
                              Board::bytes_for(ranks) / static_cast<size_t>(ranks));
}

std::shared_ptr<GroupImpl> make_if_possible(const Meeting& meeting, Deadline deadline) {
  auto [group, problem] = connect(meeting, deadline);
  if (!group && meeting.environment.rank == 0) {
    log::info("[comm] ranks do not share memory: {}", problem);
  }
  return group;
}

std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline) {
  if (std::ranges::any_of(meeting.nodes, [](int node) { return node != 0; })) {
    throw Error("comm", ErrorKind::usage,
                {.what = "back end shm connects ranks of one node",
                 .got = fmt::format("{} nodes", 1 + std::ranges::max(meeting.nodes)),
                 .expected = "1",
                 .hint = "choose auto, which uses shared memory inside of each node"});
  }
  auto [group, problem] = connect(meeting, deadline);
  if (group) return group;
  throw Error("comm", ErrorKind::usage, {.what = "the ranks cannot share memory", .got = problem});
}

}  // namespace troika::comm::shm
