#include "troika/cluster/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "troika/cluster/endpoint.h"
#include "troika/cluster/roster.h"
#include "troika/cluster/socket.h"

namespace troika::cluster {

namespace {

// To a machine that is not up yet.
constexpr Milliseconds kJoinAttemptTime{1000};
// The host greets as soon as it accepts.
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

Agent::Agent(const LaunchOptions& options)
    : patience_(options.elastic->join_timeout),
      deadline_(Deadline::after(options.elastic->join_timeout)) {
  const auto endpoint = parse_endpoint(options.elastic->endpoint);
  address_ = endpoint.address;
  port_ = endpoint.port;
  hello_ = {.host = host_name(), .pid = ::getpid(), .options = common_options(options)};
  if (!is_this_machine(address_)) return;
  if (auto listener = try_listen_at(address_, port_)) {
    hello_.hosts = true;
    server_ = std::make_unique<AgentServer>(std::move(listener), options, hello_, address_);
  }
}

bool Agent::connect() {
  auto attempt =
      try_connect(address_, port_, Deadline::after(std::min(deadline_.left(), kJoinAttemptTime)));
  if (!attempt.socket) {
    if (!deadline_.passed()) return false;
    throw Error("cluster", ErrorKind::timeout,
                {.what = fmt::format("no launch is reachable at {}:{} within {}", address_, port_,
                                     show_span(patience_.count())),
                 .got = attempt.problem,
                 .expected = "the launch on that machine",
                 .hint = "--rdzv-endpoint must name a machine of the run, and its port be open"});
  }
  socket_ = std::move(attempt.socket);
  tune(socket_.get());
  out_.add(std::string(kClientGreeting));
  send({Message::join, 0, "", to_json(hello_)});
  if (!wait_for(socket_.get(), POLLIN, Deadline::after(kAgentGreetingTime))) {
    throw Error("cluster", ErrorKind::timeout,
                {.what = fmt::format("no greeting from {}:{} within {}", address_, port_,
                                     show_span(kAgentGreetingTime.count())),
                 .got = "a connection that stays silent",
                 .expected = "the launch on that machine",
                 .hint = "another program may have the port, or that launch is stopped"});
  }
  return true;
}

short Agent::events() const {
  return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT));
}

void Agent::send(const Frame& frame) {
  out_.add(encode(frame));
  std::string reason;
  out_.flush(socket_.get(), reason);  // an end is seen by exchange(), after what came before it
}

void Agent::exchange() {
  std::string bytes, reason, unsent;
  const bool open = receive(socket_.get(), bytes, reason);
  in_.feed(bytes);
  try {
    if (!greeted_) {
      const auto start = in_.peek().substr(0, kServerGreeting.size());
      if (start != kServerGreeting.substr(0, start.size())) {
        throw Error("cluster", ErrorKind::usage,
                    {.what = fmt::format("another program answers at {}:{}", address_, port_),
                     .expected = "a launch of Troika",
                     .hint = "take another port for --rdzv-endpoint, on all machines"});
      }
      greeted_ = in_.raw(kServerGreeting.size()).has_value();
    }
    while (greeted_) {
      const auto frame = in_.next();
      if (!frame) break;
      take_in(*frame);
    }
  } catch (const Error& error) {
    problem_ = error;
  }
  if (open && !out_.flush(socket_.get(), unsent) && reason.empty()) reason = unsent;
  if (reason.empty() && !problem_ && !over_) return;
  if (!problem_ && !over_) {
    problem_ = Error(
        "cluster", ErrorKind::peer,
        {.what = fmt::format("the launch that hosts the run, at {}:{}, was lost", address_, port_),
         .got = reason,
         .expected = "one that outlives the others",
         .hint = "launch all again; trainer.ckpt_path=last goes on from the latest checkpoint"});
  }
  socket_.reset();  // poll() passes over it
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
      throw Error("cluster", ErrorKind::usage,
                  {.what = fmt::format("no launch answers at {}:{}", address_, port_),
                   .got = "what rank 0 says to ranks",
                   .hint = "MASTER_PORT must not be the port of --rdzv-endpoint"});
  }
}

std::optional<LaunchPlace> Agent::take_round() {
  return std::exchange(round_, std::nullopt);
}

std::optional<Agent::Stop> Agent::take_stop() {
  return std::exchange(stop_, std::nullopt);
}

}  // namespace troika::cluster
