// One range of the ring: the values of all tables in this range, and the vector clock of the
// requests that they include (Li et al., OSDI 2014, section 4.1). Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "troika/server/request.h"
#include "troika/server/send.h"
#include "troika/server/store.h"

namespace troika::server {

// The last finished step of each worker that has left or was lost, by the worker's number.
using Departed = std::map<uint64_t, int64_t>;

// The bytes of an answer. Many values are not copied into it, but stay where they are stored.
struct AnswerMessage {
  Message head;
  SharedBytes values = {};

  size_t size() const { return head->size() + values.bytes.size(); }
};

// Copies that execute the same writes in the same order have bit-identical values. Not thread-safe.
class Range {
 public:
  // `tables` must outlive it.
  Range(uint32_t index, uint32_t ranges, const std::vector<Table>& tables);

  // The number of the worker's last executed request; 0: none.
  uint64_t clock(uint64_t worker) const;
  // Whether the request is the worker's next one: all earlier ones were executed, or the worker has
  // their answers.
  bool is_next(const RequestHead& head) const;

  // Returns why the request cannot be executed; empty if it can.
  std::string refusal(const RequestBody& body) const;
  // Executes a write for which refusal() is empty. `message` is the request's message. For a table
  // that applies pushes per step, it is kept until commit().
  void write(const Request& request, const Message& message);
  // Returns an answer with the values that the request reads, encoded as `coding` says. Later
  // writes do not change it. `has_kept_keys` is passed on to the answer.
  AnswerMessage read(const Request& request, const Coding& coding, bool has_kept_keys) const;
  // Advances the worker's clock to the request. Forgets the numbers of vector operations to which
  // the worker has the answers.
  void advance(const RequestHead& head);
  // Applies the waiting pushes of all steps up to this one, except for those of steps that a
  // departed worker did not finish. Does nothing if the step was committed already.
  void commit(int64_t step, const Departed& departed);

  // The step of the last commit.
  int64_t committed() const { return committed_; }
  const std::vector<Table>& tables() const { return tables_; }

  // Bytes of values, state and waiting pushes.
  size_t bytes() const;
  uint64_t keys() const;
  // Save and load a copy: values, clocks and waiting pushes. load() throws Error(server, failure)
  // if the copy has other tables, and then changes nothing.
  std::string save() const;
  void load(std::string_view copy);
  // Forgets workers and waiting pushes, after load() of a snapshot: its workers are gone.
  void forget_workers();

 private:
  using AnyStore = std::variant<Store<float>, Store<double>>;

  std::vector<AnyStore> make_stores() const;
  std::string refusal_of_operations(const RequestBody& body) const;
  void compute(const Request& request);
  template <typename T>
  void apply_sums(Store<T>& store, uint32_t table, int64_t step, const Departed& departed);

  const uint32_t index_;
  const uint32_t ranges_;
  const std::vector<Table>& tables_;
  std::vector<AnyStore> stores_;         // of each table
  std::map<uint64_t, uint64_t> clocks_;  // by worker
  int64_t committed_ = -1;
  std::map<std::pair<int64_t, uint64_t>, std::vector<Message>> waiting_;  // by step and worker
  // The numbers that vector operations have returned, by worker and request: a request that arrives
  // again is answered with them, because the vectors may have changed since.
  std::map<std::pair<uint64_t, uint64_t>, std::vector<double>> numbers_;
};

}  // namespace troika::server
