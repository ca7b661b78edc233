#include "troika/cli/swarm_view.h"

#include <map>
#include <utility>

#include "troika/base/error.h"
#include "troika/parallel/swarm/swarm_dialer.h"
#include "troika/swarm/matchmaking.h"
#include "troika/train/run/swarm_run.h"

namespace troika::cli {

namespace {

constexpr Milliseconds kReconnecting{1000};

std::map<std::string, swarm::Record> by_peer(const swarm::Directory& directory, const char* kind) {
  std::map<std::string, swarm::Record> records;
  for (const auto& record : directory.find(kind)) records[record.peer] = record;
  return records;
}

}  // namespace

SwarmView::SwarmView(std::string run, const std::vector<std::string>& peers, Deadline deadline)
    : run_(std::move(run)),
      secret_(train::swarm_secret(run_)),
      endpoint_({.name = identity_.name(), .secret = secret_, .listen = {}, .polls = false}) {
  for (const auto& peer : peers) named_.push_back(train::parse_address(peer, "--peer"));
  net::act_on(endpoint_, [this] { open(); });
  for (size_t i = 0; i < named_.size(); ++i) {
    try {
      connect(named_[i], deadline);
      return;
    } catch (const Error&) {
      if (i + 1 == named_.size()) throw;
    }
  }
}

SwarmView::~SwarmView() {
  net::act_on(endpoint_, [this] {
    endpoint_.listen_to_peers({});
    bans_.reset();
    tracker_.reset();
    directory_.reset();
  });
}

void SwarmView::open() {
  directory_.emplace(endpoint_, identity_,
                     swarm::RecordRules{.run = run_,
                                        .kinds = {{swarm::kProgress, swarm::is_progress},
                                                  {swarm::kContact, swarm::is_contact},
                                                  {swarm::kReport, swarm::is_report},
                                                  {swarm::kAccusation, swarm::is_accusation},
                                                  {swarm::kSeeking, swarm::is_seeking}}},
                     swarm::system_time);
  tracker_.emplace(endpoint_, *directory_, swarm::ProgressOptions{.is_client = true});
  bans_.emplace(*directory_, endpoint_.name());
  directory_->watch([this](const swarm::Record& record) {
    tracker_->take_change(record);
    bans_->take_change(record);
  });
  endpoint_.listen_to_peers([this](const net::PeerChange& change) {
    directory_->take_change(change);
    change.is_up ? ++connections_ : --connections_;
  });
}

void SwarmView::connect(const net::Address& address, Deadline deadline) {
  const auto sign = parallel::ask_door(secret_, address, deadline);
  if (sign.run != run_) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "the peer at " + parallel::show(address) + " trains in another run",
                 .got = run_,
                 .expected = "--run " + sign.run});
  }
  endpoint_.connect(sign.name, {address}, deadline);
  // The first records come in one message.
  const bool has_peers =
      endpoint_.run_until([this] { return tracker_->peers().size() > 1; }, deadline.left());
  if (has_peers) return;
  throw Error("swarm", ErrorKind::timeout,
              {.what = "the peer at " + parallel::show(address) + " tells of no peers",
               .got = "nothing in time",
               .expected = "its own progress at least"});
}

std::vector<net::Address> SwarmView::known_addresses() {
  auto addresses = named_;
  net::act_on(endpoint_, [&] {
    for (const auto& record : directory_->find(swarm::kContact)) {
      const auto told = swarm::contact_from(record.body).addresses;
      addresses.insert(addresses.end(), told.begin(), told.end());
    }
  });
  return addresses;
}

void SwarmView::reconnect() {
  bool is_connected = false;
  net::act_on(endpoint_, [&] { is_connected = connections_ > 0; });
  if (is_connected) return;
  const auto deadline = Deadline::after(kReconnecting);
  for (const auto& address : known_addresses()) {
    if (deadline.passed()) return;
    try {
      return connect(address, deadline);
    } catch (const Error&) {
      // The page says that there is no connection.
    }
  }
}

WatchedSwarm SwarmView::look() {
  WatchedSwarm swarm{.run = run_};
  net::act_on(endpoint_, [&] {
    auto banned = bans_->banned_by(tracker_->nodes());
    for (const auto& peer : banned) {
      swarm.banned.push_back({peer, bans_->accusers_of(peer)});
    }
    tracker_->ban(std::move(banned));
    swarm.all = tracker_->swarm();
    swarm.is_connected = connections_ > 0;
    const auto contacts = by_peer(*directory_, swarm::kContact);
    const auto reports = by_peer(*directory_, swarm::kReport);
    for (const auto& progress : tracker_->peers()) {
      if (progress.peer == endpoint_.name()) continue;
      WatchedPeer peer{.progress = progress};
      if (const auto found = contacts.find(progress.peer); found != contacts.end()) {
        peer.contact = swarm::contact_from(found->second.body);
      }
      if (const auto found = reports.find(progress.peer); found != reports.end()) {
        peer.report = swarm::report_from(found->second.body);
      }
      swarm.peers.push_back(std::move(peer));
    }
  });
  return swarm;
}

}  // namespace troika::cli
