// Back end `tcp`: processes connected by an endpoint of net. Ranks are its peers, and tags are its
// channels.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/listen.h"
#include "troika/comm/messages/backend.h"
#include "troika/net/frame.h"
#include "troika/net/interface.h"
#include "troika/net/socket.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::comm::tcp {

namespace {

std::string peer_name(int rank) {
  return fmt::format("rank {}", rank);
}

net::Duration time_left(Deadline deadline) {
  return std::max(net::Duration(0), deadline.at() - Clock::now());
}

class TcpGroup : public GroupImpl {
 public:
  TcpGroup(GroupInfo info, std::shared_ptr<Lifeline> lifeline,
           std::unique_ptr<net::TcpEndpoint> endpoint)
      : GroupImpl(std::move(info), std::move(lifeline)), endpoint_(std::move(endpoint)) {
    for (int r = 0; r < size(); ++r) peers_.push_back(peer_name(r));
    // A timer wakes the waits, so that they check the lifeline.
    this->lifeline()->wake_with(this, [this] { endpoint_->after(net::Duration(0), [] {}); });
  }
  ~TcpGroup() override {
    lifeline()->leave();
    lifeline()->wake_with(this, nullptr);
    if (!lifeline()->is_cut()) return;
    // Nobody waits for the remaining messages; otherwise the destructor would wait for a rank that
    // is stopped.
    for (const auto& peer : peers_) endpoint_->disconnect(peer);
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const std::string_view message(static_cast<const char*>(data), bytes);
    if (lifeline()->fails_alone(tag_space_of(tag))) {
      return std::make_unique<KeptSend>(*this, peer, tag, std::string(message));
    }
    return std::make_unique<TcpTransfer>(*this, peer, tag, [&](net::Completion completion) {
      return endpoint_->send(name_of(peer), tag, message, net::Priority::normal,
                             std::move(completion));
    });
  }

  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const std::span<char> buffer(static_cast<char*>(data), bytes);
    return std::make_unique<TcpTransfer>(*this, peer, tag, [&](net::Completion completion) {
      return endpoint_->receive(name_of(peer), tag, buffer, std::move(completion));
    });
  }

  void hold_sends(int peer) override { endpoint_->hold_sends(name_of(peer)); }
  void release_sends(int peer) override { endpoint_->release_sends(name_of(peer)); }

  int await_any(uint32_t tag, int first, Deadline deadline) override {
    std::optional<int> from;
    bool is_hopeless = false;
    endpoint_->run_until(
        [&] {
          // Checked before the messages, because a rank sends before it leaves.
          is_hopeless = lifeline()->is_cut(tag_space_of(tag)) || others_have_left();
          for (int i = 0; i < size() && !from; ++i) {
            const int peer = (first + i) % size();
            if (peer != rank() && endpoint_->has_message(name_of(peer), tag)) from = peer;
          }
          return from || is_hopeless;
        },
        time_left(deadline));
    if (!from) fail_for_any(tag);
    return *from;
  }

 private:
  class TcpTransfer : public Transfer {
   public:
    // `start` starts the operation with the given completion.
    template <typename Start>
    TcpTransfer(TcpGroup& group, int peer, uint32_t tag, const Start& start)
        : group_(group), peer_(peer), tag_space_(tag_space_of(tag)) {
      ticket_ = start([this](const net::Result& result) {
        result_ = result;
        is_over_ = true;
      });
    }
    ~TcpTransfer() override { cancel(net::Outcome::cancelled); }
    TcpTransfer(const TcpTransfer&) = delete;
    TcpTransfer& operator=(const TcpTransfer&) = delete;

    void wait(Deadline deadline) override {
      if (!is_over_) {
        group_.endpoint_->run_until(
            [this] { return is_over_ || group_.lifeline()->is_cut(tag_space_); },
            time_left(deadline));
        cancel(net::Outcome::timeout);
      }
      if (result_.outcome != net::Outcome::done) group_.fail(peer_, tag_space_, result_);
    }
    bool done() override { return is_over_; }

   private:
    // When this returns, the completion has run.
    void cancel(net::Outcome why) {
      if (!is_over_) group_.endpoint_->cancel(ticket_, why);
    }

    TcpGroup& group_;
    const int peer_;
    const uint32_t tag_space_;
    net::Ticket ticket_ = 0;
    net::Result result_;  // valid if is_over_
    std::atomic<bool> is_over_ = false;
  };

  // A send in a group that fails alone. Cancelling a send that has been announced to the peer would
  // end the connection, so a copy of the message is kept for a receive that may never come.
  class KeptSend : public Transfer {
   public:
    KeptSend(TcpGroup& group, int peer, uint32_t tag, std::string message)
        : group_(group), peer_(peer), tag_space_(tag_space_of(tag)) {
      state_->message = std::move(message);
      group_.endpoint_->send(group_.name_of(peer), tag, std::string_view(state_->message),
                             net::Priority::normal, [state = state_](const net::Result& result) {
                               state->result = result;
                               state->is_over = true;
                               std::string().swap(state->message);
                             });
    }
    void wait(Deadline deadline) override {
      group_.endpoint_->run_until(
          [this] { return state_->is_over || group_.lifeline()->is_cut(tag_space_); },
          time_left(deadline));
      if (!state_->is_over) group_.fail(peer_, tag_space_, {.outcome = net::Outcome::timeout});
      if (state_->result.outcome != net::Outcome::done) {
        group_.fail(peer_, tag_space_, state_->result);
      }
    }
    bool done() override { return state_->is_over; }
    bool has_copied() override { return true; }

   private:
    struct State {
      std::string message;
      net::Result result;  // valid if is_over
      std::atomic<bool> is_over = false;
    };
    TcpGroup& group_;
    const int peer_;
    const uint32_t tag_space_;
    const std::shared_ptr<State> state_ = std::make_shared<State>();
  };

  const std::string& name_of(int peer) const { return peers_[static_cast<size_t>(peer)]; }

  [[noreturn]] void fail(int peer, uint32_t tag_space, const net::Result& result) const {
    lifeline()->require_live(tag_space);
    if (result.outcome == net::Outcome::timeout || result.outcome == net::Outcome::cancelled) {
      throw Error("comm", ErrorKind::timeout,
                  {.what = fmt::format("no message from {} in time", rank_name(peer))});
    }
    // Often only a consequence of another rank's loss, or of its refusal of the message.
    lifeline()->explain_broken_connection();
    if (result.outcome == net::Outcome::too_long) {
      throw Error("comm", ErrorKind::usage,
                  {.what = fmt::format("a message between {} and {} is longer than its receive",
                                       rank_name(rank()), rank_name(peer)),
                   .got = result.reason});
    }
    throw Error(
        "comm", ErrorKind::peer,
        {.what = fmt::format("lost the connection to {}", rank_name(peer)), .got = result.reason});
  }

  std::vector<std::string> peers_;
  const std::unique_ptr<net::TcpEndpoint> endpoint_;
};

// One line per address: a port and an address.
std::string to_text(const std::vector<net::Address>& addresses) {
  std::vector<std::string> lines;
  for (const auto& [host, port] : addresses) lines.push_back(fmt::format("{} {}", port, host));
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::vector<net::Address> addresses_from(const std::string& text) {
  std::vector<net::Address> addresses;
  for (const auto& line : split(text, '\n')) {
    const auto space = line.find(' ');
    const auto port = parse_int(line.substr(0, space));
    TROIKA_CHECK(port && space != std::string::npos, "a rank announces its ports and addresses");
    addresses.push_back({line.substr(space + 1), static_cast<int>(*port)});
  }
  return addresses;
}

// Connects the endpoints of all ranks, each pair once: the higher rank connects to the lower.
class Mesh {
 public:
  Mesh(const Meeting& meeting, Deadline deadline)
      : environment_(meeting.environment),
        rendezvous_(*meeting.rendezvous),
        lifeline_(*meeting.lifeline),
        deadline_(deadline) {
    for (int r = 0; r < environment_.world_size; ++r) {
      const auto node = [&](int rank) { return meeting.nodes[static_cast<size_t>(rank)]; };
      const bool is_reached = !meeting.only_between_nodes || node(r) != node(environment_.rank);
      if (r != environment_.rank && is_reached) missing_.push_back(r);
    }
    endpoint_ = std::make_unique<net::TcpEndpoint>(
        net::TcpOptions{.name = peer_name(environment_.rank),
                        .secret = share_secret(),
                        .protection = meeting.protection,
                        .streams = meeting.streams,
                        .listen = {{place_to_bind(), 0}},
                        .polls = !meeting.is_crowded,
                        .most_peers = static_cast<size_t>(environment_.world_size)});
  }

  std::unique_ptr<net::TcpEndpoint> connect() {
    endpoint_->listen_to_peers([this](const net::PeerChange& change) {
      if (change.is_up) std::erase_if(missing_, [&](int r) { return peer_name(r) == change.peer; });
    });
    const std::vector<int> others = missing_;
    rendezvous_.set(address_key(environment_.rank), to_text(own_addresses()), deadline_);
    for (const int other : others) {
      if (other < environment_.rank) connect_to(other);
    }
    const bool all = endpoint_->run_until([this] { return missing_.empty() || lifeline_.is_cut(); },
                                          time_left(deadline_));
    endpoint_->listen_to_peers({});
    lifeline_.require_live();
    if (!all) {
      lifeline_.explain_broken_connection();
      throw Error("comm", ErrorKind::timeout,
                  {.what = "tcp could not connect the ranks in time",
                   .got = fmt::format("no connection from rank {}", fmt::join(missing_, ", "))});
    }
    return std::move(endpoint_);
  }

 private:
  static std::string address_key(int rank) { return fmt::format("comm/tcp/address/{}", rank); }

  bool is_one_machine() const {
    return environment_.num_nodes == 1 || net::is_loopback(environment_.master_address);
  }
  std::string place_to_bind() const {
    return is_one_machine() ? "127.0.0.1" : cluster::place_to_bind(environment_.master_address);
  }
  std::vector<net::Address> own_addresses() const {
    const auto& [host, port] = endpoint_->addresses().front();
    if (!host.empty()) return {{host, port}};
    std::vector<net::Address> addresses;
    for (auto& own : net::own_addresses(environment_.master_address)) {
      addresses.push_back({std::move(own), port});
    }
    // For a machine without any other network.
    if (addresses.empty()) addresses.push_back({"127.0.0.1", port});
    return addresses;
  }

  // A secret of this world, made by rank 0, so that endpoints of other worlds of the run cannot
  // connect. The rendezvous encrypts it.
  net::Secret share_secret() {
    constexpr const char* kKey = "comm/tcp/secret";
    if (environment_.rank == 0) {
      const auto secret = net::Secret::random();
      rendezvous_.set(kKey, secret.to_hex(), deadline_);
      return secret;
    }
    return net::Secret::parse(rendezvous_.get(kKey, deadline_), "rank 0");
  }

  // Connects in attempts of growing length, and checks between attempts whether the world was lost.
  void connect_to(int other) {
    const auto addresses = addresses_from(rendezvous_.get(address_key(other), deadline_));
    for (Milliseconds patience{1000};; patience *= 2) {
      const bool is_last = deadline_.left() <= patience;
      try {
        return endpoint_->connect(peer_name(other), addresses,
                                  is_last ? deadline_ : Deadline::after(patience));
      } catch (const Error& error) {
        lifeline_.require_live();
        if (error.kind() == ErrorKind::timeout && !is_last) continue;
        throw Error("comm", error.kind(),
                    {.what = "tcp could not connect the ranks", .got = error.what()});
      }
    }
  }

  const cluster::Environment& environment_;
  cluster::Rendezvous& rendezvous_;
  const Lifeline& lifeline_;
  const Deadline deadline_;
  std::vector<int> missing_;  // ranks not yet connected; guarded by the endpoint
  std::unique_ptr<net::TcpEndpoint> endpoint_;
};

}  // namespace

std::string why_unavailable() {
  return {};
}

int64_t most_mailbox_bytes(int ranks) {
  return (ranks - 1) * static_cast<int64_t>(net::kCreditWindow);
}

std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline) {
  GroupInfo info = meeting.group_info("tcp");
  info.receives_any = true;
  info.can_fail_alone = true;
  return std::make_shared<TcpGroup>(std::move(info), meeting.lifeline,
                                    Mesh(meeting, deadline).connect());
}

}  // namespace troika::comm::tcp
