#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "troika/base/error.h"
#include "troika/server/send.h"
#include "troika/server/sum_coding.h"
#include "troika/server/summation.h"
#include "troika/server/summation_wire.h"

namespace troika::server {

namespace {

bool is_of_left_out(SummationAction action) {
  return action == SummationAction::left_out || action == SummationAction::set_left_out;
}

}  // namespace

struct SummationClient::State {
  // A piece that was pushed.
  struct Flight {
    SummationPiece piece;
    std::string head;
    std::string sent, received;  // encoded values, unless they are plain
    uint64_t round = 0;
    net::Ticket receive = 0, send = 0;
    bool is_received = false, is_sent = false, is_confirmed = false;
  };

  net::Endpoint& endpoint;
  const SummationClientOptions options;
  std::map<std::pair<int64_t, uint64_t>, SummationPiece> queue = {};  // by -priority and key
  std::map<uint64_t, std::shared_ptr<Flight>> flights = {};           // by key
  std::map<uint64_t, uint64_t> rounds = {};                           // of keys
  uint64_t other_rounds = uint64_t{1} << 63;                          // is_of_left_out()
  size_t in_flight = 0;                                               // bytes
  std::vector<SummationTraffic> traffic = {};                         // by server
  std::vector<uint64_t> pushed = {}, levels = {};                     // bytes, by server
  size_t most_in_flight = 0;
  Residuals residuals = {};
  std::string failure = {};
  bool is_dispatching = false;

  void fail(const std::string& reason) {
    if (failure.empty()) failure = reason;
  }
  // Whether the worker may push so many bytes to a server before others have pushed more.
  bool may_lead(const SummationPiece& piece) const {
    if (options.lead_bytes.empty() || is_of_left_out(piece.action)) return true;
    const size_t server = piece.server, bytes = piece.values.size();
    const uint64_t ahead = pushed[server] - std::min(pushed[server], levels[server]);
    return ahead == 0 || ahead + bytes <= options.lead_bytes[server];
  }
  // Completions of sends and receives may call this function again.
  static void dispatch(const std::shared_ptr<State>& state) {
    if (std::exchange(state->is_dispatching, true)) return;
    auto& queue = state->queue;
    std::set<size_t> leading;  // servers whose pieces wait
    for (auto next = queue.begin(); next != queue.end() && state->failure.empty();) {
      const auto& waiting = next->second;
      const size_t bytes = waiting.values.size();
      const size_t credit = state->options.credit_bytes;
      if (credit > 0 && state->in_flight > 0 && state->in_flight + bytes > credit) break;
      if (leading.size() == state->options.servers.size()) break;
      if (leading.contains(waiting.server) || !state->may_lead(waiting)) {
        leading.insert(waiting.server);
        ++next;
        continue;
      }
      auto piece = std::move(next->second);
      next = queue.erase(next);
      push(state, std::move(piece));
    }
    state->is_dispatching = false;
  }
  static void push(const std::shared_ptr<State>& state, SummationPiece piece) {
    const auto flight = std::make_shared<Flight>();
    const auto& options = state->options;
    const auto& server = options.servers[piece.server];
    const uint64_t key = piece.key;
    // One worker alone asks for what was left out, so all others count the rounds without that.
    const bool is_of_all = !is_of_left_out(piece.action);
    flight->round = is_of_all ? state->rounds[key]++ : state->other_rounds++;
    flight->piece = std::move(piece);
    const auto values = flight->piece.values;
    PushHead head{.key = key,
                  .round = flight->round,
                  .rank = options.rank,
                  .workers = options.workers,
                  .type = flight->piece.type,
                  .action = flight->piece.action,
                  .rate = flight->piece.rate};
    std::span<const char> sent = values;
    if (head.action == SummationAction::read || head.action == SummationAction::left_out) sent = {};
    if (state->encode(*flight, head)) sent = flight->sent;
    // A plain mean goes where the values were: the server sends it when it has all of them.
    std::span<char> room = values;
    if (state->may_be_encoded(flight->piece)) {
      flight->received.resize(values.size());
      room = flight->received;
    }
    flight->head = head.text();
    state->flights[key] = flight;
    state->in_flight += values.size();
    state->most_in_flight = std::max(state->most_in_flight, state->in_flight);
    state->traffic[flight->piece.server].sent_bytes += sent.size();
    if (is_of_all) state->pushed[flight->piece.server] += values.size();
    flight->receive = state->endpoint.receive(server, kMeans + key, room,
                                              [state, flight](const net::Result& result) {
                                                if (!state->is_done(*flight, result)) return;
                                                state->take_mean(*flight, result.bytes);
                                                land(state, *flight);
                                              });
    flight->send = state->endpoint.send(
        server, kPushes, {flight->head, std::string_view(sent.data(), sent.size())},
        net::Priority::normal, [state, flight](const net::Result& result) {
          if (!state->is_done(*flight, result)) return;
          flight->is_sent = true;
          land(state, *flight);
        });
  }
  bool may_be_encoded(const SummationPiece& piece) const {
    return options.coding.form != SumForm::plain && piece.action == SummationAction::sum;
  }
  // Returns false for values that are sent as they are.
  bool encode(Flight& flight, PushHead& head) {
    const auto& piece = flight.piece;
    if (!may_be_encoded(piece)) return false;
    const auto coding = coding_for(options.coding, piece.values.size() / size_of(piece.type));
    head.has_feedback = options.coding.error_feedback;
    head.parameter = coding.parameter;
    head.has_l2_norm = coding.has_l2_norm;
    if (head.has_feedback) residuals.enter(piece.key);
    const bool fits = head.has_feedback ? residuals.encode(piece.key, coding, piece.type,
                                                           piece.values, flight.sent, piece.rate)
                                        : encode_sum(coding, piece.type, piece.values, flight.sent);
    if (fits) head.form = coding.form;
    return fits;
  }
  // A receipt may come after the mean.
  void confirm(Flight& flight) {
    if (!std::exchange(flight.is_confirmed, true)) in_flight -= flight.piece.values.size();
  }
  static void take_receipt(const std::shared_ptr<State>& state, const std::string& /*server*/,
                           const std::string& message) {
    Reader reader(message);
    const auto key = reader.number<uint64_t>(), round = reader.number<uint64_t>();
    const auto flight = state->flights.find(key);
    if (flight == state->flights.end() || flight->second->round != round) return;
    state->confirm(*flight->second);
    dispatch(state);
  }
  static void take_level(const std::shared_ptr<State>& state, const std::string& peer,
                         const std::string& message) {
    Reader reader(message);
    const auto level = reader.number<uint64_t>();
    const auto& servers = state->options.servers;
    const auto server = std::ranges::find(servers, peer) - servers.begin();
    if (server == std::ssize(servers)) return;
    state->levels[static_cast<size_t>(server)] = level;
    dispatch(state);
  }
  bool is_done(const Flight& flight, const net::Result& result) {
    if (result.outcome == net::Outcome::done) return true;
    fail(fmt::format("{} is lost: {}", options.servers[flight.piece.server], result.reason));
    return false;
  }
  void take_mean(Flight& flight, size_t bytes) {
    auto& piece = flight.piece;
    traffic[piece.server].received_bytes += bytes;
    flight.is_received = true;
    if (piece.action == SummationAction::left_out && bytes == 0) {
      std::ranges::fill(piece.values, '\0');
      return;
    }
    const bool has_answer =
        piece.action != SummationAction::probe && piece.action != SummationAction::set_left_out;
    if (!has_answer && bytes == 0) return;
    // A mean that does not fit the form comes plain.
    const bool is_plain = !may_be_encoded(piece) || bytes == piece.values.size();
    std::string decoded;
    try {
      const auto received = std::span<const char>(flight.received);
      if (!is_plain) {
        decode_sum(options.coding.form, piece.type, received.first(bytes), piece.values.size(),
                   decoded);
      }
    } catch (const Error& error) {
      return fail(fmt::format("{}: {}", options.servers[piece.server], error.what()));
    }
    if ((is_plain ? bytes : decoded.size()) != piece.values.size()) {
      return fail(fmt::format("{}: a mean of {} bytes instead of {}", options.servers[piece.server],
                              bytes, piece.values.size()));
    }
    if (!may_be_encoded(piece)) return;
    std::ranges::copy(is_plain ? flight.received : decoded, piece.values.begin());
  }
  // The push has left, or the mean has come.
  static void land(const std::shared_ptr<State>& state, Flight& flight) {
    if (!flight.is_received || !flight.is_sent || !state->failure.empty()) return;
    const auto done = std::move(flight.piece.done);
    state->confirm(flight);
    state->flights.erase(flight.piece.key);
    if (done) done();
    dispatch(state);
  }
};

SummationClient::SummationClient(net::Endpoint& endpoint, SummationClientOptions options)
    : state_(std::make_shared<State>(endpoint, std::move(options))) {
  const size_t servers = state_->options.servers.size();
  state_->traffic.resize(servers);
  state_->pushed.resize(servers);
  state_->levels.resize(servers);
  // A failure that came before belongs to an earlier client.
  endpoint.handle(kSummationFailures, kMostFailure,
                  [state = state_](const std::string& /*peer*/, const std::string& message) {
                    state->fail(message);
                  });
  const auto handle = [&](net::Channel channel, auto take) {
    endpoint.handle(channel, kPushHead,
                    [state = state_, take](const std::string& peer, const std::string& message) {
                      try {
                        take(state, peer, message);
                      } catch (const Error& error) {
                        state->fail(peer + ": " + error.what());
                      }
                    });
  };
  handle(kReceived, State::take_receipt);
  handle(kLevels, State::take_level);
  const auto& own = state_->options;
  for (const auto& server : own.servers) {
    net::send_owned(endpoint, server, kPushes,
                    std::make_shared<const std::string>(
                        PushHead{.key = kHello, .rank = own.rank, .workers = own.workers}.text()));
  }
}

SummationClient::~SummationClient() {
  for (const auto channel : {kSummationFailures, kReceived, kLevels})
    state_->endpoint.handle(channel, 0, {});
  drop();
}

void SummationClient::drop() {
  net::act_on(state_->endpoint, [this] {
    if (!state_->flights.empty() || !state_->queue.empty()) state_->fail("gradients were dropped");
    state_->queue.clear();
    for (const auto& [key, flight] : std::exchange(state_->flights, {})) {
      state_->endpoint.cancel(flight->receive, net::Outcome::cancelled);
      if (!flight->is_sent) state_->endpoint.cancel(flight->send, net::Outcome::cancelled);
    }
  });
}

bool SummationClient::is_idle() {
  bool is_idle = false;
  net::act_on(state_->endpoint, [&] {
    is_idle = state_->failure.empty() && state_->flights.empty() && state_->queue.empty();
  });
  return is_idle;
}

std::string SummationClient::left_out(uint64_t key) {
  std::string values;
  net::act_on(state_->endpoint, [&] { values = state_->residuals.residual(key); });
  return values;
}

void SummationClient::set_left_out(uint64_t key, std::string values, double rate) {
  net::act_on(state_->endpoint, [&] { state_->residuals.keep(key, std::move(values), rate); });
}

void SummationClient::push(std::vector<SummationPiece> pieces) {
  bool is_doubled = false;
  net::act_on(state_->endpoint, [&] {
    auto& state = *state_;
    is_doubled = state.failure.empty() && std::ranges::any_of(pieces, [&](const auto& piece) {
                   return state.flights.contains(piece.key) ||
                          state.queue.contains({-piece.priority, piece.key});
                 });
    if (is_doubled) return;
    for (auto& piece : pieces) {
      state.queue.emplace(std::pair(-piece.priority, piece.key), std::move(piece));
    }
    State::dispatch(state_);
  });
  TROIKA_CHECK(!is_doubled, "a key was pushed before it was finished");
}

void SummationClient::wait(Deadline deadline, const std::function<std::string()>& trouble,
                           const std::function<bool()>& is_enough) {
  std::string failure;
  size_t missing = 0;
  std::string whose;
  const auto is_over = [&] {
    if (const auto reason = trouble ? trouble() : ""; !reason.empty()) state_->fail(reason);
    failure = state_->failure;
    missing = state_->flights.size() + state_->queue.size();
    if (!state_->flights.empty()) {
      whose = state_->options.servers[state_->flights.begin()->second->piece.server];
    }
    return !failure.empty() || (is_enough ? is_enough() : missing == 0);
  };
  const bool is_in_time = state_->endpoint.run_until(is_over, time_left(deadline));
  if (!failure.empty()) {
    throw Error("server", ErrorKind::peer,
                {.what = "summation servers cannot average gradients", .got = failure});
  }
  if (is_in_time) return;
  net::act_on(state_->endpoint, [&] { state_->fail("a mean that did not come in time"); });
  throw Error("server", ErrorKind::timeout,
              {.what = "means of gradients did not come in time",
               .got = fmt::format("{} missing, one of them of {}", missing, whose),
               .expected = "all workers to push, and all summation servers to answer"});
}

SummationTraffic SummationClient::traffic() {
  SummationTraffic all;
  net::act_on(state_->endpoint, [&] {
    for (const auto& one : state_->traffic) {
      all.sent_bytes += one.sent_bytes;
      all.received_bytes += one.received_bytes;
    }
    all.most_in_flight_bytes = state_->most_in_flight;
  });
  return all;
}

SummationTraffic SummationClient::traffic(size_t server) {
  SummationTraffic one;
  net::act_on(state_->endpoint, [&] { one = state_->traffic.at(server); });
  return one;
}

}  // namespace troika::server
