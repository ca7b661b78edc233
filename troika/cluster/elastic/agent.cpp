#include "troika/cluster/elastic/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/rendezvous/roster.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// The time to connect; the machine may not be up yet.
constexpr Milliseconds kJoinAttemptTime{1000};
// The host answers as soon as it has read the message.
constexpr Milliseconds kAgentGreetingTime{5000};

std::string show_seconds(Milliseconds span) {
  return fmt::format("{}", static_cast<double>(span.count()) / 1e3);
}

std::vector<std::pair<std::string, std::string>> common_options(const LaunchOptions& options) {
  const auto& elastic = *options.elastic;
  return {{"--rdzv-id", elastic.id.empty() ? "none" : elastic.id},
          {"--nnodes", fmt::format("{}:{}", elastic.min_nodes, options.num_nodes)},
          {"--nproc-per-node", std::to_string(options.processes)},
          {"--max-restarts", std::to_string(options.max_restarts)},
          {"--master-port", std::to_string(options.master_port)},
          {"--shutdown-timeout", show_seconds(options.shutdown_timeout)},
          {"--rdzv-last-call-timeout", show_seconds(elastic.last_call_timeout)},
          {"--rdzv-join-timeout", show_seconds(elastic.join_timeout)}};
}

}  // namespace

Agent::Agent(const LaunchOptions& options, const RunSecret& secret)
    : patience_(options.elastic->join_timeout),
      deadline_(Deadline::after(options.elastic->join_timeout)),
      secret_(secret),
      line_({.name = unique_name(), .secret = role_key(secret, Role::launches), .listen = {}}) {
  const auto endpoint = parse_endpoint(options.elastic->endpoint);
  endpoint_ = endpoint;
  line_.listen_to_peers([this](const net::PeerChange& change) {
    if (change.is_up) return;
    inbox_.end = change.reason;
    inbox_.news.wake();
  });
  line_.handle(kToRank, kMaxMessage, [this](const std::string&, const std::string& frames) {
    inbox_.frames += frames;
    inbox_.news.wake();
  });
  hello_ = {.host = net::host_name(), .pid = ::getpid(), .options = common_options(options)};
  if (!is_this_machine(endpoint.address)) return;
  auto here = try_listen_for(endpoint.address, endpoint.port, [&](const std::string& name) {
    const bool is_chosen = name == kInterfaceVariable && !options.interface.empty();
    return is_chosen ? std::optional(options.interface) : process_variable(name);
  });
  // Another launch on this machine may host already, or another program may use the port.
  if (!here.socket) return;
  endpoint_.address = here.address;
  hello_.hosts = true;
  server_ =
      std::make_unique<AgentServer>(std::move(here), secret, options, hello_, endpoint.address);
}

std::string Agent::host_name() const {
  return listener_name(Role::launches, endpoint_.port);
}

std::string Agent::place() const {
  return fmt::format("{}:{}", endpoint_.address, endpoint_.port);
}

bool Agent::connect() {
  using Kind = net::DialFailure::Kind;
  const auto failure = line_.try_connect(
      host_name(), {endpoint_.address, endpoint_.port}, role_key(secret_, Role::launches),
      {.deadline = Deadline::after(kJoinAttemptTime + kAgentGreetingTime),
       .connect = std::min(deadline_.left(), kJoinAttemptTime),
       .answer = kAgentGreetingTime});
  if (!failure) {
    is_connected_ = true;
    send({Message::join, 0, "", to_json(hello_)});
    return true;
  }
  switch (failure->kind) {
    case Kind::unreachable:
    case Kind::busy:
      return wait_for_host(failure->detail);
    case Kind::foreign:
      throw Error("cluster", ErrorKind::usage,
                  {.what = fmt::format("another program answers at {}", place()),
                   .got = fmt::format("\"{}\"", failure->detail),
                   .expected = "a launch of Troika",
                   .hint = "take another port for --rdzv-endpoint, on all machines"});
    case Kind::silent:
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("no answer from {} within {}", place(),
                                       show_span(kAgentGreetingTime.count())),
                   .got = "a connection that stays silent",
                   .expected = "the launch on that machine",
                   .hint = "another program may have the port, or that launch is stopped"});
    case Kind::refused:
      if (!refusals_.add()) return wait_for_host(failure->detail);
      [[fallthrough]];
    case Kind::wrong:
      break;
  }
  throw not_authenticated("the launch at " + place(), *failure, secret_);
}

// Returns false while there is time for another attempt; throws Error(cluster, timeout) afterwards.
bool Agent::wait_for_host(const std::string& problem) const {
  if (!deadline_.passed()) return false;
  throw Error("cluster", ErrorKind::timeout,
              {.what = fmt::format("no launch is reachable at {} within {}", place(),
                                   show_span(patience_.count())),
               .got = problem,
               .expected = "the launch on that machine",
               .hint = "--rdzv-endpoint must name a machine of the run, and its port be open"});
}

void Agent::send(const Frame& frame) {
  net::send_owned(line_, host_name(), kToServer,
                  std::make_shared<const std::string>(encode(frame)));
}

void Agent::exchange() {
  std::string arrived;
  std::optional<std::string> end;
  net::act_on(line_, [&] {
    inbox_.news.clear();
    arrived.swap(inbox_.frames);
    end = inbox_.end;
  });
  try {
    for (std::string_view frames = arrived; !frames.empty();) take_in(take_frame(frames));
  } catch (const Error& error) {
    problem_ = error;
  }
  if (problem_ || over_) line_.disconnect(host_name());
  if (end && !problem_ && !over_) {
    problem_ = Error(
        "cluster", ErrorKind::peer,
        {.what = fmt::format("the launch that hosts the run, at {}, was lost", place()),
         .got = *end,
         .expected = "one that outlives the others",
         .hint = "launch all again; trainer.ckpt_path=last resumes from the latest checkpoint"});
  }
  is_connected_ = !end && !problem_ && !over_;
}

void Agent::take_in(const Frame& frame) {
  switch (frame.message) {
    case Message::round:
      round_ = launch_place_from_json(frame.value);
      stop_.reset();
      return;
    case Message::stop:
      stop_ = {.may_save = frame.number != 0, .why = frame.value};
      return;
    case Message::over:
      over_ = {.code = static_cast<int>(frame.number), .why = frame.value};
      return;
    case Message::refused:
      problem_ = to_error(frame.value);
      return;
    default:
      throw Error("cluster", ErrorKind::failure,
                  {.what = fmt::format("the launch at {} sent what no launch sends", place())});
  }
}

std::optional<LaunchPlace> Agent::take_round() {
  return std::exchange(round_, std::nullopt);
}

std::optional<Agent::Stop> Agent::take_stop() {
  return std::exchange(stop_, std::nullopt);
}

}  // namespace troika::cluster
