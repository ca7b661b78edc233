#include "troika/cluster/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "troika/cluster/listen.h"
#include "troika/cluster/roster.h"
#include "troika/net/socket.h"

namespace troika::cluster {

namespace {

// To a machine that is not up yet.
constexpr Milliseconds kJoinAttemptTime{1000};
// The host answers as soon as it has read.
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
      secret_(secret) {
  const auto endpoint = parse_endpoint(options.elastic->endpoint);
  endpoint_ = endpoint;
  hello_ = {.host = net::host_name(), .pid = ::getpid(), .options = common_options(options)};
  if (!is_this_machine(endpoint.address)) return;
  auto here = try_listen_for(endpoint.address, endpoint.port, [&](const std::string& name) {
    const bool is_chosen = name == kInterfaceVariable && !options.interface.empty();
    return is_chosen ? std::optional(options.interface) : process_variable(name);
  });
  // Another launch on this machine may host, or another program have the port.
  if (!here.socket) return;
  endpoint_.address = here.address;
  hello_.hosts = true;
  server_ = std::make_unique<AgentServer>(
      std::move(here.socket),
      net::ServerHandshake(secret.secret, listener_name("launches", endpoint.port)), options,
      hello_, endpoint.address);
}

std::string Agent::place() const {
  return fmt::format("{}:{}", endpoint_.address, endpoint_.port);
}

bool Agent::connect() {
  auto attempt = net::try_connect(endpoint_.address, endpoint_.port,
                                  Deadline::after(std::min(deadline_.left(), kJoinAttemptTime)));
  if (!attempt.socket) return wait_for_host(attempt.problem);
  net::tune(attempt.socket.get());
  auto greeting =
      net::greet(attempt.socket.get(), secret_.secret, listener_name("launches", endpoint_.port),
                 Deadline::after(kAgentGreetingTime));
  switch (greeting.proof) {
    case net::Proof::given:
      break;
    case net::Proof::foreign:
      throw Error("cluster", ErrorKind::usage,
                  {.what = fmt::format("another program answers at {}", place()),
                   .got = fmt::format("\"{}\"", greeting.detail),
                   .expected = "a launch of Troika",
                   .hint = "take another port for --rdzv-endpoint, on all machines"});
    case net::Proof::silent:
      throw Error("cluster", ErrorKind::timeout,
                  {.what = fmt::format("no answer from {} within {}", place(),
                                       show_span(kAgentGreetingTime.count())),
                   .got = "a connection that stays silent",
                   .expected = "the launch on that machine",
                   .hint = "another program may have the port, or that launch is stopped"});
    case net::Proof::refused:
      if (!refusals_.add()) return wait_for_host(greeting.detail);
      [[fallthrough]];
    case net::Proof::wrong:
      throw not_authenticated("the launch at " + place(), greeting, secret_);
  }
  socket_ = std::move(attempt.socket);
  session_.emplace(*greeting.keys);
  send({Message::join, 0, "", to_json(hello_)});
  return true;
}

// False while there is time for another attempt.
bool Agent::wait_for_host(const std::string& problem) const {
  if (!deadline_.passed()) return false;
  throw Error("cluster", ErrorKind::timeout,
              {.what = fmt::format("no launch is reachable at {} within {}", place(),
                                   show_span(patience_.count())),
               .got = problem,
               .expected = "the launch on that machine",
               .hint = "--rdzv-endpoint must name a machine of the run, and its port be open"});
}

short Agent::events() const {
  return static_cast<short>(POLLIN | (out_.empty() ? 0 : POLLOUT));
}

void Agent::send(const Frame& frame) {
  out_.add(session_->sealer.seal(encode(frame)));
  std::string reason;
  out_.flush(socket_.get(), reason);  // an end is seen by exchange(), after what came before it
}

void Agent::exchange() {
  std::string bytes, text, reason, unsent;
  const bool open = net::receive(socket_.get(), bytes, reason);
  try {
    session_->opener.open(bytes, text);
    in_.feed(text);
    while (const auto frame = in_.next()) take_in(*frame);
  } catch (const Error& error) {
    problem_ = error;
  }
  if (open && !out_.flush(socket_.get(), unsent) && reason.empty()) reason = unsent;
  if (reason.empty() && !problem_ && !over_) return;
  if (!problem_ && !over_) {
    problem_ = Error(
        "cluster", ErrorKind::peer,
        {.what = fmt::format("the launch that hosts the run, at {}, was lost", place()),
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
