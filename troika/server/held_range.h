// A range of the ring on one of the servers that hold it: the master, or a server with a copy.
// Internal to the room.
//
// A master sends each copy a stream of numbered entries: first all values, then every write, in the
// master's order. It acknowledges a write when all required copies have it (Li et al., OSDI 2014,
// section 4.3). The term of a stream is the generation of the map at its beginning. A server
// accepts entries only from the master in its own map, so a master that was replaced while its
// process was stopped cannot acknowledge anything.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/server/ahead_messages.h"
#include "troika/server/control.h"
#include "troika/server/kept_keys.h"
#include "troika/server/range.h"
#include "troika/server/resend_queue.h"
#include "troika/server/ring_map.h"

namespace troika::server {

// The head of an entry's message, 48 bytes. The entry follows.
struct CopyHead {
  uint64_t generation = 0;  // of the master's map
  uint64_t term = 0;
  uint64_t number = 0;  // of the write, or of the last write that the copy contains
  uint32_t range = 0;
  bool is_whole = false;   // the entry is a copy of all values, not a write
  int64_t committed = -1;  // the steps that the master had applied before the write
};
// Acknowledges all entries up to `number`. 24 bytes.
struct Receipt {
  uint64_t term = 0;
  uint64_t number = 0;
  uint32_t range = 0;
};
CopyHead parse_copy_head(std::string_view message);
inline constexpr size_t kCopyHead = 48;
Receipt parse_receipt(std::string_view message);

// The maximum size of a request or an answer, in bytes.
inline constexpr size_t kMostMessage = size_t{1} << 30;
// The maximum size of the lists of keys that a server keeps for the requests to a range, in bytes.
inline constexpr size_t kMostKeptKeys = size_t{16} << 20;

// All functions run under the endpoint's rules for callbacks. Entries that a receiver has not
// acknowledged stay in memory until the scheduler declares the receiver lost.
class HeldRange {
 public:
  // `endpoint` and `tables` must outlive it. `patience`: see ResendQueue.
  HeldRange(net::Endpoint& endpoint, uint32_t index, uint32_t ranges,
            const std::vector<Table>& tables, net::Duration patience);

  // Begins with the values of a snapshot. Must be called before follow(). Throws Error(server,
  // failure) if they are not of this range.
  void load_snapshot(std::string_view saved);
  // Whether this server is the range's master.
  bool is_master() const { return is_master_; }
  // For a master: returns the range as it is after this step, which all workers have finished.
  std::string save_after(int64_t step);

  // Changes to the role that a newer map gives this server.
  void follow(std::shared_ptr<const RingMap> map);
  // Executes a worker's request and sends the answer, if this server is the range's master and the
  // request is the worker's next one; then also those that came before it and follow it. Returns
  // how many requests were executed now, not earlier.
  uint64_t take_request(const std::string& worker, const RequestHead& head, const Message& message);
  void take_copy(const std::string& master, const CopyHead& head, std::string_view entry);
  void take_receipt(const std::string& server, const Receipt& receipt);
  // Sends entries again that were not acknowledged in time.
  void resend();

  // Returns the servers whose copies are whole and required, but which are not yet holders in the
  // map.
  std::vector<CopyDone> copies_done() const;
  const Range& range() const { return range_; }

 private:
  // A write, or all values, and the steps that the master had applied before it. A copy applies
  // steps at the same place among the writes, so that its bits are the master's.
  struct Entry {
    Message message;
    int64_t committed = -1;
  };
  // A copy on another server.
  struct Copy {
    Copy(uint64_t term_, net::Duration patience) : term(term_), queue(patience, 256) {}

    uint64_t term;
    ResendQueue<Entry> queue;
    uint64_t whole = 0;        // the number of the entry with all values
    uint64_t received = 0;     // the entries up to this one have arrived
    bool has_begun = false;    // the entry with all values has arrived
    bool is_required = false;  // writes are acknowledged only after they have arrived here
    bool is_done = false;      // all acknowledged writes have arrived
  };
  // A worker's number, and that of its request.
  using RequestId = std::pair<uint64_t, uint64_t>;
  // An answer that waits for copies.
  struct WaitingAnswer {
    uint64_t number = 0;
    std::string worker;
    RequestId request;
    AnswerMessage answer;
  };

  bool execute(const std::string& worker, const RequestHead& head, const Message& message);
  // Executes the entry of a copy that is next_.
  void write_entry(const std::string& master, const CopyHead& head, const Message& entry);
  void start_copy(const std::string& server, bool is_required);
  void send_to(const std::string& server, Copy& copy);
  void send_entry(const std::string& server, const Copy& copy, uint64_t number, const Entry& entry,
                  net::Completion completion);
  void add_entry(const Message& write);
  // Returns the plain message of a request; null if its keys are absent and not kept.
  Message decode(const RequestHead& head, const Message& message);
  void answer(const std::string& worker, const Request& request, const Coding& coding,
              bool has_kept_keys, const std::string& refusal);
  void send_acknowledged();
  void send_answer(const std::string& worker, RequestId request, const AnswerMessage& answer);

  net::Endpoint& endpoint_;
  const uint32_t index_;
  const net::Duration patience_;
  Range range_;
  std::shared_ptr<const RingMap> map_;  // the newest
  // For a master.
  bool is_master_ = false;
  std::map<std::string, Copy> copies_;
  uint64_t written_ = 0;       // number of writes since this server became master
  uint64_t acknowledged_ = 0;  // writes up to this one may be acknowledged
  std::deque<WaitingAnswer> waiting_;
  // The requests whose answers wait or are being sent. When these are repeated, they are not
  // answered again, so that large answers do not pile up. Completions may outlive the range.
  std::shared_ptr<std::set<RequestId>> answering_ = std::make_shared<std::set<RequestId>>();
  KeptKeys kept_keys_{kMostKeptKeys};
  // For a master by worker, for a copy by term.
  AheadMessages ahead_;
  // For a copy: the master's stream and its next entry.
  uint64_t term_ = 0;
  uint64_t next_ = 0;
};

}  // namespace troika::server
