// Summation servers: each sums what all workers push under a key, and returns the mean to all of
// them (BytePS: Jiang et al., OSDI 2020, section 4). Optimizers stay at the workers. In BytePS's
// asynchronous mode, servers keep parameters, and add the change of each worker at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/table.h"

namespace troika::server {

class Residuals;
struct PushHead;

// The form in which gradients and means are sent. All but `plain` lose bits.
enum class SumForm : uint8_t {
  plain,
  half,     // IEEE 754 binary16
  int8,     // for each block of values, a scale and one byte for each value
  top,      // the values of the largest magnitudes, with their places; the others are zero
  sign,     // one bit for each value, and the mean magnitude (1-bit SGD: Seide et al., 2014)
  random,   // values at random places, with the seed of these; the others are zero
  dither,   // as int8, rounded up or down at random, so that the expectation is the value (QSGD:
            // Alistarh et al., NeurIPS 2017)
  natural,  // as dither, but levels are powers of two (natural dithering: Horvath et al., 2019,
            // arXiv 1905.10988), so that small values of a block lose less
};
inline constexpr SumForm kLastSumForm = SumForm::natural;

struct SummationCoding {
  SumForm form = SumForm::plain;
  double density = 0.01;  // top and random: the part of a piece's values that is sent
  uint32_t block = 256;   // int8, dither and natural: values that share a scale
  // dither and natural: the scale of a block is its L2 norm, as in QSGD, not its largest magnitude.
  bool has_l2_norm = false;
  // Keep what an encoding leaves out, and add it to the next values of the key: on the way to the
  // servers at the worker, and on the way back at the server (two-way: Zheng et al., NeurIPS 2019,
  // arXiv 1905.10936).
  bool error_feedback = false;
};

// The action of a server on the values of a piece.
enum class SummationAction : uint8_t {
  sum,     // returns the mean of all workers' values, when all have pushed
  set,     // keeps the values, and returns them
  change,  // adds the change since this worker last got them to the values kept, and returns these
  read,    // returns the values kept; none are sent
  left_out,      // returns what encodings have left out of the means of this key
  set_left_out,  // replaces that, before the next push of this key
  probe,         // returns nothing, for measurements of links
};

// Bytes of values as they are sent, without heads of messages.
struct SummationTraffic {
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
  uint64_t most_in_flight_bytes = 0;  // of a client: the most that were pushed and not confirmed
};

// A service on an endpoint, which works in the endpoint's callbacks. The endpoint must outlive it.
// Any thread may call its functions.
//
// The values of a key are added in the order of the workers' ranks as they arrive, and divided by
// the number of workers, so the bits of a mean do not depend on the order of arrival, and all
// workers get the same ones. A key has memory from its first push until its last mean is sent. If a
// worker's connection ends while others have pushed what it has not, or a push does not fit those
// of the others, all workers are told why, and no further mean is sent.
//
// The server remembers which kept values it has sent to each worker last, so a worker pushes its
// new values, not their change. A value that no other worker has changed since becomes the pushed
// one, bit by bit. Otherwise the change is added in 64 bits and rounded once.
//
// The server tells all workers how many bytes the slowest of them has pushed (the level), so that
// the others need not get far ahead. Values that came early would only delay those that a mean
// waits for.
class SummationServer {
 public:
  explicit SummationServer(net::Endpoint& endpoint);
  ~SummationServer();
  SummationServer(const SummationServer&) = delete;
  SummationServer& operator=(const SummationServer&) = delete;

  SummationTraffic traffic();

 private:
  struct Sum;
  struct Held;
  struct Push;
  struct Progress {
    std::string peer;
    uint64_t bytes = 0;  // pushed since its hello
  };

  void take(const std::string& peer, std::string message);
  void watch(const std::string& peer);
  void confirm(const std::string& peer, const PushHead& head);
  void add(const std::string& peer, Push push);
  // Acts on values that are kept.
  void hold(const std::string& peer, Push push);
  void answer_left_out(const std::string& peer, const Push& push);
  // Sends the mean to all workers of the sum.
  void publish(uint64_t key, Sum& sum);
  void fail(const std::string& reason);
  void tell_failure(const std::string& peer);
  void begin_level(const PushHead& hello);
  void raise_level(const std::string& peer, const Push& push);

  net::Endpoint& endpoint_;
  std::map<uint64_t, Sum> sums_;   // by key
  std::map<uint64_t, Held> held_;  // by key
  const std::unique_ptr<Residuals> residuals_;
  std::vector<Progress> progress_;  // by rank
  uint64_t level_ = 0;
  std::map<std::string, net::Ticket> peers_;  // that have said hello, with the watch on them
  std::map<std::string, std::string> gone_;   // peers whose connections have ended, and why
  std::string failure_;
  SummationTraffic traffic_;
};

struct SummationClientOptions {
  uint32_t rank = 0;
  uint32_t workers = 1;
  std::vector<std::string> servers;  // names of the endpoints
  // Bytes that may be pushed before servers have confirmed that they have them. A piece that is
  // larger is pushed when nothing else is in flight. 0: no limit. Servers confirm each push at
  // once: workers that push in different orders would wait for each other for ever if only a mean
  // gave credit back.
  size_t credit_bytes = 0;
  // For each server, the bytes that may be pushed beyond its level (SummationServer). A larger
  // piece is pushed when the level has reached all earlier ones. Empty: no limit.
  std::vector<size_t> lead_bytes = {};
  // The form of pushes and means, the same of all workers. Servers add plain values. Values that do
  // not fit the form, or would not be shorter in it, are sent plain.
  SummationCoding coding = {};
};

// The bit of keys that tells layouts apart: what encodings have left out of values counts until a
// push of a key whose bit is another one.
inline constexpr uint64_t kLayoutBit = uint64_t{1} << 31;

// Values that take part in one mean, or in another action. `values` is replaced by what the server
// returns, by zeros if nothing was left out; it must stay valid and untouched until `done` has run,
// or drop() has returned, or the client has ended.
struct SummationPiece {
  uint64_t key = 0;
  size_t server = 0;     // index of SummationClientOptions::servers
  int64_t priority = 0;  // the greatest goes first; among equals the least key
  ValueType type = ValueType::float32;
  SummationAction action = SummationAction::sum;
  std::span<char> values;
  std::function<void()> done = {};  // runs under the rules for callbacks when the mean is there
  // The learning rate of the step, at least 0. Parts that encodings have left out are multiplied by
  // the rate of their step / this one.
  double rate = 1;
};

// One worker of summation servers, on an endpoint that is connected to them. The endpoint must
// outlive it. All workers push the same keys with equally many values of the same type, each key
// once before a wait(), in any order. Any thread may call its functions, callbacks must not.
class SummationClient {
 public:
  SummationClient(net::Endpoint& endpoint, SummationClientOptions options);
  ~SummationClient();
  SummationClient(const SummationClient&) = delete;
  SummationClient& operator=(const SummationClient&) = delete;

  // Queues pieces, and pushes as many as the credit allows. Does not block. Throws
  // CheckError for a key that is not finished, unless a call has failed.
  void push(std::vector<SummationPiece> pieces);
  // Blocks until all pieces are replaced by their means or, if it is not empty, until `is_enough`
  // returns true. Throws Error(server): `peer` that names the server that is lost, or with a
  // server's reason, or with that of `trouble`; `timeout`. Then no later call succeeds. `trouble`,
  // if not empty, and `is_enough` are called often, under the rules for callbacks; `trouble`
  // returns why it is no use to wait, or nothing.
  void wait(Deadline deadline, const std::function<std::string()>& trouble = {},
            const std::function<bool()>& is_enough = {});
  // Whether no piece is unfinished and no call has failed.
  bool is_idle();
  // Returns what encodings have left out of the values of this key that were pushed so far, in
  // their type; empty: nothing.
  std::string left_out(uint64_t key);
  // Replaces that, before the next push of this key, by what a step of this rate has left out.
  void set_left_out(uint64_t key, std::string values, double rate = 1);
  // Drops unfinished pieces. Their values have any content then and may be freed, and no later call
  // succeeds. Without any it does nothing.
  void drop();
  // Returns the traffic with all servers.
  SummationTraffic traffic();
  // Returns the traffic with one server.
  SummationTraffic traffic(size_t server);

 private:
  struct State;

  const std::shared_ptr<State> state_;  // shared with callbacks
};

}  // namespace troika::server
