#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/server/send.h"
#include "troika/server/summation.h"
#include "troika/server/summation_wire.h"

namespace troika::server {

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
  size_t in_flight = 0;                                               // bytes
  std::vector<SummationTraffic> traffic = {};                         // by server
  size_t most_in_flight = 0;
  std::string failure = {};
  bool is_dispatching = false;

  void fail(const std::string& reason) {
    if (failure.empty()) failure = reason;
  }
  // Completions of sends and receives may call this function again.
  static void dispatch(const std::shared_ptr<State>& state) {
    if (std::exchange(state->is_dispatching, true)) return;
    while (!state->queue.empty() && state->failure.empty()) {
      const size_t bytes = state->queue.begin()->second.values.size();
      const size_t credit = state->options.credit_bytes;
      if (credit > 0 && state->in_flight > 0 && state->in_flight + bytes > credit) break;
      auto piece = std::move(state->queue.begin()->second);
      state->queue.erase(state->queue.begin());
      push(state, std::move(piece));
    }
    state->is_dispatching = false;
  }
  static void push(const std::shared_ptr<State>& state, SummationPiece piece) {
    const auto flight = std::make_shared<Flight>();
    const auto& options = state->options;
    const auto& server = options.servers[piece.server];
    const uint64_t key = piece.key;
    flight->round = state->rounds[key]++;
    flight->piece = std::move(piece);
    const auto values = flight->piece.values;
    PushHead head{.key = key,
                  .round = flight->round,
                  .rank = options.rank,
                  .workers = options.workers,
                  .type = flight->piece.type};
    std::span<const char> sent = values;
    if (encode_values(options.form, head.type, values, 0, flight->sent)) {
      head.form = options.form;
      sent = flight->sent;
    }
    // A plain mean goes where the values were: the server sends it when it has all of them.
    std::span<char> room = values;
    if (options.form != ValueForm::plain) {
      flight->received.resize(values.size());
      room = flight->received;
    }
    flight->head = head.text();
    state->flights[key] = flight;
    state->in_flight += values.size();
    state->most_in_flight = std::max(state->most_in_flight, state->in_flight);
    state->traffic[flight->piece.server].sent_bytes += sent.size();
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
  // A receipt may come after the mean.
  void confirm(Flight& flight) {
    if (!std::exchange(flight.is_confirmed, true)) in_flight -= flight.piece.values.size();
  }
  static void take_receipt(const std::shared_ptr<State>& state, const std::string& message) {
    Reader reader(message);
    const auto key = reader.number<uint64_t>(), round = reader.number<uint64_t>();
    const auto flight = state->flights.find(key);
    if (flight == state->flights.end() || flight->second->round != round) return;
    state->confirm(*flight->second);
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
    // A mean that does not fit the form comes plain.
    const bool is_plain = options.form == ValueForm::plain || bytes == piece.values.size();
    std::string decoded;
    try {
      const auto received = std::span<const char>(flight.received);
      if (!is_plain) decode_values(options.form, piece.type, received.first(bytes), decoded);
    } catch (const Error& error) {
      return fail(fmt::format("{}: {}", options.servers[piece.server], error.what()));
    }
    if ((is_plain ? bytes : decoded.size()) != piece.values.size()) {
      return fail(fmt::format("{}: a mean of {} bytes instead of {}", options.servers[piece.server],
                              bytes, piece.values.size()));
    }
    if (options.form == ValueForm::plain) return;
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
  state_->traffic.resize(state_->options.servers.size());
  // A failure that came before belongs to an earlier client.
  endpoint.handle(kSummationFailures, kMostFailure,
                  [state = state_](const std::string& /*peer*/, const std::string& message) {
                    state->fail(message);
                  });
  endpoint.handle(kReceived, kPushHead,
                  [state = state_](const std::string& peer, const std::string& message) {
                    try {
                      State::take_receipt(state, message);
                    } catch (const Error& error) {
                      state->fail(peer + ": " + error.what());
                    }
                  });
  const auto& own = state_->options;
  for (const auto& server : own.servers) {
    net::send_owned(endpoint, server, kPushes,
                    std::make_shared<const std::string>(
                        PushHead{.key = kHello, .rank = own.rank, .workers = own.workers}.text()));
  }
}

SummationClient::~SummationClient() {
  for (const auto channel : {kSummationFailures, kReceived})
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

void SummationClient::push(std::vector<SummationPiece> pieces) {
  net::act_on(state_->endpoint, [&] {
    for (auto& piece : pieces) {
      state_->queue.emplace(std::pair(-piece.priority, piece.key), std::move(piece));
    }
    State::dispatch(state_);
  });
}

void SummationClient::wait(Deadline deadline, const std::function<std::string()>& trouble) {
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
    return !failure.empty() || missing == 0;
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
