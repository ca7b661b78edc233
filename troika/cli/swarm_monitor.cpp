#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "troika/base/error.h"
#include "troika/cli/commands.h"
#include "troika/cli/swarm_commands.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/parallel/swarm/swarm_dialer.h"
#include "troika/swarm/gossip.h"
#include "troika/swarm/matchmaking.h"
#include "troika/swarm/progress.h"
#include "troika/train/run/swarm_run.h"

namespace troika::cli {

namespace {

// Reads the records of a swarm as a neighbour of one of its peers, and publishes none.
class SwarmView {
 public:
  SwarmView(const std::string& run, const std::vector<std::string>& peers, Deadline deadline)
      : endpoint_({.name = identity_.name(),
                   .secret = train::swarm_secret(run),
                   .listen = {},
                   .polls = false}) {
    net::act_on(endpoint_, [&] { open(run); });
    std::vector<net::Address> addresses;
    for (const auto& peer : peers) addresses.push_back(train::parse_address(peer, "--peer"));
    for (size_t i = 0; i < addresses.size(); ++i) {
      try {
        connect(run, addresses[i], deadline);
        return;
      } catch (const Error&) {
        if (i + 1 == addresses.size()) throw;
      }
    }
  }
  ~SwarmView() {
    net::act_on(endpoint_, [this] {
      endpoint_.listen_to_peers({});
      tracker_.reset();
      directory_.reset();
    });
  }
  SwarmView(const SwarmView&) = delete;
  SwarmView& operator=(const SwarmView&) = delete;

  // Returns the peers that are alive and what they have told, and the whole.
  struct Page {
    swarm::SwarmProgress all;
    std::vector<std::pair<swarm::PeerProgress, swarm::Contact>> peers;
    int64_t target_batch = 0;
  };
  Page page() {
    Page page;
    net::act_on(endpoint_, [&] {
      page = {.all = tracker_->swarm(), .peers = {}};
      for (const auto& progress : tracker_->peers()) {
        if (progress.peer == endpoint_.name()) continue;
        page.peers.emplace_back(progress, contact_of(progress.peer));
        page.target_batch = std::max(page.target_batch, page.peers.back().second.target_batch);
      }
    });
    std::ranges::stable_sort(page.peers, std::greater{}, [](const auto& peer) {
      return std::pair(peer.first.epoch, peer.first.samples_per_second);
    });
    return page;
  }
  bool wait(const std::function<bool()>& is_over, net::Duration at_most) {
    return endpoint_.run_until(is_over, at_most);
  }

 private:
  void open(const std::string& run) {
    if (directory_) return;
    directory_.emplace(endpoint_, identity_,
                       swarm::RecordRules{.run = run,
                                          .kinds = {{swarm::kProgress, swarm::is_progress},
                                                    {swarm::kContact, swarm::is_contact},
                                                    {swarm::kSeeking, swarm::is_seeking}}},
                       swarm::system_time);
    tracker_.emplace(endpoint_, *directory_, swarm::ProgressOptions{.is_client = true});
    directory_->watch([this](const swarm::Record& record) { tracker_->take_change(record); });
    endpoint_.listen_to_peers(
        [this](const net::PeerChange& change) { directory_->take_change(change); });
  }
  void connect(const std::string& run, const net::Address& address, Deadline deadline) {
    const auto sign = parallel::ask_door(train::swarm_secret(run), address, deadline);
    if (sign.run != run) {
      throw Error("swarm", ErrorKind::usage,
                  {.what = "the peer at " + parallel::show(address) + " trains in another run",
                   .got = run,
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
  swarm::Contact contact_of(const std::string& peer) const {
    for (const auto& record : directory_->find(swarm::kContact)) {
      if (record.peer == peer) return swarm::contact_from(record.body);
    }
    return {};
  }

  const swarm::Identity identity_ = swarm::Identity::random();
  net::TcpEndpoint endpoint_;
  std::optional<swarm::GossipDirectory> directory_;
  std::optional<swarm::ProgressTracker> tracker_;
};

double share_of(const SwarmView::Page& page, const swarm::PeerProgress& peer) {
  double all = 0;
  for (const auto& [other, contact] : page.peers) all += other.samples_per_second;
  return all > 0 ? peer.samples_per_second / all : 0;
}

std::string as_text(const std::string& run, const SwarmView::Page& page) {
  std::string text = fmt::format(
      "swarm {}: {} peers, step {}, {:.0f} of {} samples, {:.1f} "
      "samples/s\n",
      run, page.peers.size(), page.all.epoch,
      std::min(page.all.samples, static_cast<double>(page.target_batch)), page.target_batch,
      page.all.samples_per_second);
  text += fmt::format("{:<8}  {:>6}  {:>7}  {:>9}  {:>5}  {:<6}  {:<7}  {}\n", "peer", "step",
                      "samples", "samples/s", "share", "kind", "state", "address");
  for (const auto& [peer, contact] : page.peers) {
    const char* state = peer.epoch < page.all.epoch ? "behind"
                        : peer.is_partial           ? "apart"
                                                    : "equal";
    text +=
        fmt::format("{:<8}  {:>6}  {:>7}  {:>9.1f}  {:>3.0f} %  {:<6}  {:<7}  {}\n",
                    peer.peer.substr(0, 8), peer.epoch, peer.samples, peer.samples_per_second,
                    100 * share_of(page, peer), peer.is_client ? "client" : "node", state,
                    contact.addresses.empty() ? "-" : parallel::show(contact.addresses.front()));
  }
  return text;
}

std::string as_json(const std::string& run, const SwarmView::Page& page) {
  auto peers = nlohmann::json::array();
  for (const auto& [peer, contact] : page.peers) {
    peers.push_back(
        {{"key", peer.peer},
         {"step", peer.epoch},
         {"samples", peer.samples},
         {"samples_per_second", peer.samples_per_second},
         {"share", share_of(page, peer)},
         {"is_client", peer.is_client},
         {"is_partial", peer.is_partial},
         {"model", contact.model},
         {"address", contact.addresses.empty() ? "" : parallel::show(contact.addresses.front())}});
  }
  return nlohmann::json{{"run", run},
                        {"step", page.all.epoch},
                        {"samples", page.all.samples},
                        {"target_batch", page.target_batch},
                        {"samples_per_second", page.all.samples_per_second},
                        {"peers", peers}}
             .dump() +
         '\n';
}

}  // namespace

int run_monitor(const MonitorArguments& arguments) {
  const auto deadline = Deadline::after(to_timeout("--timeout", arguments.timeout_seconds));
  const cluster::StopSignals signals(/*requeue=*/false);
  SwarmView view(arguments.run, arguments.peers, deadline);
  const bool redraws = !arguments.once && !arguments.json && ::isatty(STDOUT_FILENO) != 0;
  const auto is_stopped = [&] { return signals.asked() != cluster::StopRequest::none; };
  do {
    const auto page = view.page();
    if (redraws) fmt::print("\x1b[H\x1b[J");
    fmt::print("{}", arguments.json ? as_json(arguments.run, page) : as_text(arguments.run, page));
    std::fflush(stdout);
  } while (!arguments.once && !view.wait(is_stopped, std::chrono::seconds(1)));
  return 0;
}

}  // namespace troika::cli
